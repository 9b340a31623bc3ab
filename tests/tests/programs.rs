//! The planner's programs as data: they verify, every wait in them is needed, and they move what arithmetic says and no
//! byte more. Nothing is run.

use megatrain_base::{DType, RegionId};
use megatrain_layers::Activations;
use megatrain_planner::{
    ActivationChoice, HostTask, Model, Plan, PlanError, Program, Settings, SlotCount, UpdatePolicy,
};
use megatrain_scheduler::{Cmd, LaneKind, traffic, traffic_where, verify};
use megatrain_tests::small;
use proptest::prelude::*;

fn plan(family: &str, layers: usize, settings: Settings) -> Result<Plan, PlanError> {
    Plan::new(Model::clone(&small::family(family, layers).model), settings)
}

/// Every program that a plan has.
fn programs(plan: &Plan) -> Vec<std::sync::Arc<Program>> {
    let training = (1..=plan.settings.micro_batches).filter(|_| plan.settings.train).map(|n| plan.train(n));
    let evaluation = (1..=plan.group()).map(|n| plan.evaluate(n));
    let generation = [1, plan.settings.micro_tokens].map(|tokens| plan.generate(tokens));
    training.chain(evaluation).chain(generation).map(|program| program.unwrap_or_else(|e| panic!("{e}"))).collect()
}

/// Removing any one wait leaves a program that is refused.
fn every_wait_is_needed(program: &Program) -> usize {
    verify(program).unwrap_or_else(|e| panic!("{}: {e}", program.name));
    let waits: Vec<usize> =
        (0..program.commands.len()).filter(|&i| matches!(program.commands[i].cmd, Cmd::Wait(_))).collect();
    for &at in &waits {
        let mut without = program.clone();
        let removed = without.commands.remove(at);
        let place = format!("{}: command {at} of {}, {removed:?}", program.name, program.commands.len());
        assert!(verify(&without).is_err(), "{place} can be left out");
    }
    waits.len()
}

#[test]
fn every_wait_of_every_program_is_needed() {
    for update in [UpdatePolicy::AfterNorm, UpdatePolicy::Eager] {
        for (dtype, group, spill) in [(DType::F32, 2, true), (DType::Bf16, 1, false)] {
            let settings = Settings { update, group: Some(group), spill, ..Settings::new(dtype, 8, 3) };
            let plan = plan("qwen2", 3, settings).unwrap();
            let waits: usize = programs(&plan).iter().map(|program| every_wait_is_needed(program)).sum();
            assert!(waits > 200, "only {waits} waits");
        }
    }
}

/// Bytes that a step moves, from sizes alone: `(to the device, back)`.
fn expected_traffic(plan: &Plan, micros: usize) -> (u64, u64) {
    let (settings, model) = (&plan.settings, &plan.model);
    let size = settings.dtype.size_bytes();
    let (layers, slots, groups) = (model.blocks() as u64, plan.slots() as u64, micros.div_ceil(plan.group()) as u64);
    let (micros, tokens) = (micros as u64, settings.micro_tokens as u64);
    let block = &model.unit(model.block_unit(0)).layout;
    let head = &model.unit(model.head_unit()).layout;

    // Each pass ends with the last `slots` blocks on the device, where the next pass, in the other direction, begins.
    let held = slots.min(layers);
    let fetches = if held == layers { layers } else { 2 * groups * layers - (2 * groups - 1) * held };
    let weights = fetches * block.len_bytes(settings.dtype) + head.len_bytes(settings.dtype);
    let gradients = groups * (layers * block.params() + head.params()) * size;
    let rows = tokens * model.config.hidden as u64 * size;
    // Targets, positions, document borders, and the reciprocal of the number of targets.
    let inputs = 4 * (tokens + tokens + tokens + 1 + 1);
    let losses = 4 * tokens;
    let spilled: u64 = plan
        .blocks()
        .iter()
        .filter(|b| b.spill)
        .map(|b| {
            let saved = model.block.saved(b.level, settings.micro_tokens, settings.dtype);
            rows + saved.iter().map(|s| s.shape.elems() * s.dtype.size_bytes()).sum::<u64>()
        })
        .sum();
    (weights + micros * (inputs + rows + spilled), gradients + micros * (rows + losses + spilled))
}

#[test]
fn a_step_moves_what_arithmetic_says() {
    let layers = 6;
    for (family, dtype) in
        [("qwen2", DType::F32), ("qwen2", DType::Bf16), ("qwen3", DType::F32), ("llama3", DType::Bf16)]
    {
        for slots in [SlotCount::Count(2), SlotCount::Count(3), SlotCount::All] {
            for (group, level, spill) in
                [(1, Activations::Keep, false), (2, Activations::Recompute, true), (4, Activations::Partial, true)]
            {
                let activations = ActivationChoice::All(level);
                let settings =
                    Settings { slots, group: Some(group), activations, spill, ..Settings::new(dtype, 16, 4) };
                let plan = plan(family, layers, settings).unwrap();
                for micros in 1..=4 {
                    let program = plan.train(micros).unwrap();
                    let moved = traffic(&program);
                    let what = format!("{family} {dtype} {slots:?} groups of {group} {level:?} {micros} micro-batches");
                    assert_eq!((moved.h2d_bytes(), moved.d2h_bytes()), expected_traffic(&plan, micros), "{what}");
                    let head = plan.unit(plan.model.head_unit()).weights.span;
                    let uploads =
                        program.commands.iter().filter(|e| matches!(&e.cmd, Cmd::Copy { src, .. } if *src == head));
                    assert_eq!(uploads.count(), 1, "{what}: the head travels once");
                }
            }
        }
    }
}

#[test]
fn only_the_update_lane_writes_weights_and_every_unit_is_updated_once() {
    for update in [UpdatePolicy::AfterNorm, UpdatePolicy::Eager] {
        let plan = plan("qwen3", 4, Settings { update, group: Some(1), ..Settings::new(DType::Bf16, 8, 2) }).unwrap();
        let program = plan.train(2).unwrap();
        let units = plan.model.units.len();
        let updated: Vec<u32> = program
            .commands
            .iter()
            .filter_map(|e| match &e.cmd {
                Cmd::Host(HostTask::Update { unit, .. }) => Some(unit.0),
                _ => None,
            })
            .collect();
        let mut sorted = updated.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..units as u32).collect::<Vec<_>>(), "{update:?}");
        let weights: Vec<RegionId> = plan
            .model
            .units
            .iter()
            .enumerate()
            .map(|(u, _)| plan.unit(megatrain_base::UnitId(u as u32)).weights.span.region)
            .collect();
        for entry in &program.commands {
            entry.cmd.accesses(&mut |span, access| {
                let writer = program.contract.lanes[entry.lane.0 as usize].kind;
                assert!(
                    !(access.writes() && weights.contains(&span.region)) || writer == LaneKind::Update,
                    "{entry:?}"
                );
            });
        }
        // What the update lane does alone is not on the device's links.
        let links = traffic_where(&program, |e| program.contract.lanes[e.lane.0 as usize].kind == LaneKind::Update);
        assert_eq!((links.h2d_bytes(), links.d2h_bytes()), (0, 0));
    }
}

#[test]
fn inference_plans_hold_weights_only() {
    let plan = plan("qwen3", 4, Settings { train: false, ..Settings::new(DType::Bf16, 8, 2) }).unwrap();
    assert!(plan.train(1).is_err());
    for program in programs(&plan) {
        verify(&program).unwrap();
    }
    for (u, unit) in plan.model.units.iter().enumerate() {
        let regions = plan.unit(megatrain_base::UnitId(u as u32));
        assert_eq!(regions.weights.span.len_bytes, unit.layout.len_bytes(DType::Bf16));
        let state = [regions.low, regions.m, regions.v].map(|t| t.span.len_bytes);
        assert_eq!((state, regions.sum, regions.landing), ([0; 3], None, None));
    }
}

/// A setting is obeyed or refused: automatic levels do not undo `spill`, however much memory there is.
#[test]
fn spilling_that_was_asked_for_is_done() {
    let settings = Settings { spill: true, ..Settings::new(DType::Bf16, 1, 1) };
    let in_budget = |bytes| plan("qwen3", 1, Settings { device_memory_bytes: bytes, ..settings.clone() });
    let Err(PlanError::BudgetTooSmall { need_bytes, .. }) = in_budget(0) else { panic!("a plan in no memory") };
    assert!(in_budget(need_bytes - 1).is_err());
    for budget in [need_bytes, u64::MAX] {
        let plan = in_budget(budget).unwrap();
        assert!(plan.blocks().iter().all(|b| b.spill));
        assert!(need_bytes <= plan.regions()[plan.device_region().0 as usize].len_bytes);
    }
}

fn settings() -> impl Strategy<Value = (Settings, f64)> {
    let levels = prop_oneof![
        3 => Just(ActivationChoice::Auto),
        1 => Just(ActivationChoice::All(Activations::Keep)),
        1 => Just(ActivationChoice::All(Activations::Partial)),
        1 => Just(ActivationChoice::All(Activations::Recompute)),
    ];
    let slots = prop_oneof![(2usize..5).prop_map(SlotCount::Count), Just(SlotCount::All)];
    let shape = (prop::sample::select(vec![1usize, 7, 8, 24]), 1usize..6, 1usize..30);
    let choices = (levels, slots, any::<bool>(), any::<bool>(), any::<bool>(), 2usize..4);
    (shape, choices, prop::option::of(0f64..1.0), 0f64..1.0).prop_map(
        |((tokens, micros, logits_rows), (activations, slots, spill, eager, bf16, gradient_ring), group, budget)| {
            let dtype = if bf16 { DType::Bf16 } else { DType::F32 };
            let settings = Settings {
                activations,
                slots,
                spill,
                update: if eager { UpdatePolicy::Eager } else { UpdatePolicy::AfterNorm },
                gradient_ring,
                logits_rows,
                group: group.map(|g| 1 + (g * micros as f64) as usize),
                ..Settings::new(dtype, tokens, micros)
            };
            (settings, budget)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_settings_and_budget_give_programs_that_verify(
        (settings, share) in settings(), layers in 1usize..6, family in prop::sample::select(vec!["qwen2", "qwen3"]),
    ) {
        let in_budget = |bytes| plan(family, layers, Settings { device_memory_bytes: bytes, ..settings.clone() });
        let device = |plan: &Plan| plan.regions()[plan.device_region().0 as usize].len_bytes;
        let most = device(&in_budget(u64::MAX).unwrap());
        let Err(PlanError::BudgetTooSmall { need_bytes: least, .. }) = in_budget(0) else { panic!("a plan in no memory") };
        prop_assert!(least <= most, "needs {} of {}", least, most);
        prop_assert!(in_budget(least - 1).is_err());
        let budget = least + ((most - least) as f64 * share) as u64;
        let plan = in_budget(budget).unwrap();
        prop_assert!(device(&plan) <= budget);
        for program in programs(&plan) {
            if let Err(e) = verify(&program) {
                panic!("{}: {e}", program.name);
            }
        }
    }
}
