//! What must not change a bit: where weights and activations wait, in which order commands run, on how many threads, and
//! when units are updated.

use megatrain_base::DType;
use megatrain_cpu::{ExecutorOptions, Mode};
use megatrain_data::{MicroBatch, Random};
use megatrain_layers::{Activations, ModelConfig};
use megatrain_planner::{ActivationChoice, Model, Plan, PlanError, Settings, SlotCount, UpdatePolicy, UpdateRates};
use megatrain_tests::batch::{micro, random_document, random_steps};
use megatrain_tests::compare::{assert_near, gradient_roundings, relative, rounding};
use megatrain_tests::rig::{Optim, Outcome, Rig};
use megatrain_tests::runs::{lines, run};
use megatrain_tests::small;
use megatrain_trainer::setup::Source;

const TOKENS: usize = 24;
const MICROS: usize = 4;
const LAYERS: usize = 5;

/// One way to run the same training.
struct Variant {
    name: String,
    settings: Settings,
    executor: ExecutorOptions,
}

/// Everything on the device, nothing computed twice, one command after the other on one thread.
fn plain(dtype: DType) -> (Settings, ExecutorOptions) {
    let settings = Settings {
        slots: SlotCount::All,
        activations: ActivationChoice::All(Activations::Keep),
        group: Some(MICROS),
        logits_rows: 7,
        ..Settings::new(dtype, TOKENS, MICROS)
    };
    (settings, ExecutorOptions { mode: Mode::Inline, poison: true, threads: 1, ..ExecutorOptions::default() })
}

/// The table: a line a variant of [`plain`].
fn variants(dtype: DType) -> Vec<Variant> {
    use Activations::{Keep, Partial, Recompute};
    let (settings, executor) = plain(dtype);
    let mut all = Vec::new();
    let mut add = |name: String, change: &dyn Fn(&mut Settings, &mut ExecutorOptions)| {
        let (mut settings, mut executor) = (settings.clone(), executor.clone());
        change(&mut settings, &mut executor);
        all.push(Variant { name, settings, executor });
    };
    add("same again".into(), &|_, _| {});
    for n in [2, 3, LAYERS - 1] {
        add(format!("{n} slots"), &|s, _| s.slots = SlotCount::Count(n));
    }
    for (level, spill) in [Keep, Partial, Recompute].into_iter().flat_map(|level| [(level, false), (level, true)]) {
        add(format!("{level:?}, spill {spill}, 2 slots"), &|s, _| {
            (s.activations, s.spill, s.slots) = (ActivationChoice::All(level), spill, SlotCount::Count(2));
        });
    }
    for n in [2, 3] {
        add(format!("{n} threads"), &|_, e| e.threads = n);
        add(format!("lanes as threads, {n} threads"), &|s, e| {
            (e.mode, e.threads, s.slots) = (Mode::Threads, n, SlotCount::Count(2));
        });
    }
    add("spill, lanes as threads".into(), &|s, e| {
        (s.spill, s.slots, e.mode) = (true, SlotCount::Count(2), Mode::Threads);
    });
    add("spill, recompute, shuffle".into(), &|s, e| {
        (s.spill, s.slots, e.mode) = (true, SlotCount::Count(2), Mode::Shuffle(1));
        s.activations = ActivationChoice::All(Recompute);
    });
    for ring in [2, 3] {
        for update_params in [1.0, 3.5e9, f64::INFINITY] {
            add(format!("eager, {ring} slabs, {update_params} parameters a second"), &|s, _| {
                (s.update, s.gradient_ring, s.slots) = (UpdatePolicy::Eager, ring, SlotCount::Count(2));
                s.rates = UpdateRates { update_params, ..s.rates };
            });
        }
    }
    add("eager, lanes as threads".into(), &|s, e| {
        (s.update, s.slots, e.mode) = (UpdatePolicy::Eager, SlotCount::Count(2), Mode::Threads);
    });
    all
}

fn steps(source: &Source) -> Vec<Vec<MicroBatch>> {
    // The last step is smaller than the plan, as at the end of an epoch.
    random_steps(&[MICROS, MICROS, MICROS - 1], TOKENS, source.model.config.vocab, 3)
}

fn train(source: &Source, settings: Settings, executor: ExecutorOptions) -> Outcome {
    Rig::new(source, settings, executor).train(&steps(source), Optim::lr(1e-2))
}

fn check(source: &Source, reference: &Outcome, variants: impl IntoIterator<Item = Variant>) {
    assert!(reference.losses.iter().chain(&reference.norms).all(|x| x.is_finite() && *x > 0.0), "{reference:?}");
    for Variant { name, settings, executor } in variants {
        let dtype = settings.dtype;
        let outcome = train(source, settings, executor);
        if let Some(difference) = outcome.difference(reference) {
            panic!("{} {dtype}, {name}: {difference}", source.model.config.model_type);
        }
    }
}

#[test]
fn where_things_wait_and_in_which_order_they_run_changes_no_bit() {
    for family in ["qwen2", "qwen3"] {
        let source = small::family(family, LAYERS);
        for dtype in [DType::F32, DType::Bf16] {
            let (settings, executor) = plain(dtype);
            check(&source, &train(&source, settings, executor), variants(dtype));
        }
    }
}

#[test]
fn every_device_budget_gives_the_same_bits() {
    let source = small::family("qwen3", LAYERS);
    for dtype in [DType::F32, DType::Bf16] {
        for group in [1, 2, MICROS] {
            let (mut settings, executor) = plain(dtype);
            settings.group = Some(group);
            let reference = train(&source, settings.clone(), executor.clone());
            (settings.slots, settings.activations) = (SlotCount::Count(2), ActivationChoice::Auto);
            let plan = |bytes| {
                let settings = Settings { device_memory_bytes: bytes, ..settings.clone() };
                Plan::new(Model::clone(&source.model), settings)
            };
            let Err(PlanError::BudgetTooSmall { need_bytes: least, .. }) = plan(1) else {
                panic!("a plan in one byte")
            };
            let device = |plan: &Plan| plan.regions()[plan.device_region().0 as usize].len_bytes;
            let most = device(&plan(u64::MAX).unwrap());
            let mut choices = Vec::new();
            let budgets = (0..=6).map(|i| least + (most - least) * i / 6);
            let variants: Vec<Variant> = budgets
                .map(|bytes| {
                    let made = plan(bytes).unwrap();
                    assert!(device(&made) <= bytes, "{} bytes of {bytes}", device(&made));
                    choices.push(made.blocks().to_vec());
                    let settings = Settings { device_memory_bytes: bytes, ..settings.clone() };
                    Variant {
                        name: format!("groups of {group} in {bytes} bytes"),
                        settings,
                        executor: executor.clone(),
                    }
                })
                .collect();
            choices.dedup();
            assert!(choices.len() >= 5, "the budgets force only {} choices: {choices:?}", choices.len());
            let mixed = choices.iter().filter(|blocks| blocks.iter().any(|b| *b != blocks[0])).count();
            assert!(mixed >= 2, "only {mixed} choices treat blocks differently: {choices:?}");
            check(&source, &reference, variants);
        }
    }
}

#[test]
fn a_hundred_orders_give_the_same_bits() {
    let source = small::family("qwen2", 3);
    let steps = random_steps(&[2, 2], 12, source.model.config.vocab, 5);
    for (dtype, update) in [(DType::F32, UpdatePolicy::AfterNorm), (DType::Bf16, UpdatePolicy::Eager)] {
        let settings = Settings { update, spill: true, ..Settings::new(dtype, 12, 2) };
        let train = |mode| {
            let executor = ExecutorOptions { mode, poison: true, threads: 1, ..ExecutorOptions::default() };
            Rig::new(&source, settings.clone(), executor).train(&steps, Optim::lr(1e-2))
        };
        let inline = train(Mode::Inline);
        for seed in 0..100 {
            if let Some(difference) = train(Mode::Shuffle(seed)).difference(&inline) {
                panic!("{dtype}, order {seed}: {difference}");
            }
        }
    }
}

/// The gradient of a group is summed on the device, those of several groups on the host. Both add from the left: groups of
/// 1 and of 3 sum the four gradients of a block in the order in which one group of 4 does, and differ only where a kernel
/// adds a micro-batch to the sum in several pieces (the head's chunks of rows here, long micro-batches elsewhere); groups
/// of 2 pair them up. A tied table is summed with the embedding's gradient in between. So: rounding, not bits.
#[test]
fn groups_change_rounding_only() {
    let source = small::family("qwen2", LAYERS);
    let micros = &steps(&source)[0];
    let step = |group: usize| {
        let (settings, executor) = plain(DType::F32);
        let rig = Rig::new(&source, Settings { group: Some(group), ..settings }, executor);
        let result = rig.step(micros, Optim::lr(0.0));
        let names: Vec<String> = rig.tensors().map(|(_, t)| t.name.clone()).collect();
        (result, names.iter().map(|name| (name.clone(), rig.gradient(name))).collect::<Vec<_>>())
    };
    let (together, whole) = step(MICROS);
    for group in [1, 2, 3] {
        let (apart, parts) = step(group);
        assert_eq!(apart.loss_sums, together.loss_sums, "forward passes do not know their group");
        for ((name, part), (_, whole)) in parts.iter().zip(&whole) {
            assert_near(&format!("groups of {group}: {name}"), part, whole, rounding(2 * MICROS));
        }
    }
}

#[test]
fn micro_batch_sizes_give_the_same_loss() {
    let source = small::family("qwen3", LAYERS);
    let sequences: Vec<_> = {
        let mut random = Random::new(11, 0);
        let vocab = source.model.config.vocab;
        (0..4).map(|i| random_document(&mut random, 6 + 4 * i, vocab, i % 2)).collect()
    };
    let seq_len = 18;
    let config = &source.model.config;
    let run = |size: usize| {
        let micros: Vec<_> = sequences.chunks(size).map(|part| micro(part, size * seq_len)).collect();
        let settings = Settings::new(DType::F32, size * seq_len, micros.len());
        let rig = Rig::new(&source, settings, plain(DType::F32).1);
        let result = rig.step(&micros, Optim::lr(0.0));
        (result.loss_sum(), result.grad_norm())
    };
    let bound = rounding(gradient_roundings(config, seq_len));
    let (loss, norm) = run(1);
    for size in [2, 4] {
        let (other_loss, other_norm) = run(size);
        assert!(relative(other_loss, loss) <= bound, "{size}: {other_loss} and {loss}");
        assert!(relative(other_norm, norm) <= bound, "{size}: {other_norm} and {norm}");
    }
}

/// Large enough for kernels and optimizer to share their work among threads.
#[test]
fn thread_counts_change_no_bit() {
    let source = small::from_config(ModelConfig { layers: 2, ..ModelConfig::preset("demo").unwrap() });
    let steps = random_steps(&[2], 192, source.model.config.vocab, 3);
    for dtype in [DType::F32, DType::Bf16] {
        let train = |threads, mode| {
            let executor = ExecutorOptions { mode, threads, ..ExecutorOptions::default() };
            Rig::new(&source, Settings::new(dtype, 192, 2), executor).train(&steps, Optim::lr(1e-2).clip(1.0))
        };
        let one = train(1, Mode::Inline);
        for (threads, mode) in [(2, Mode::Inline), (3, Mode::Inline), (3, Mode::Threads)] {
            assert_eq!(train(threads, mode).difference(&one), None, "{dtype}, {threads} threads, {mode:?}");
        }
    }
}

/// deepspeedai/DeepSpeed#5523, huggingface/transformers#11389
#[test]
fn a_seed_gives_the_same_run_and_another_seed_another() {
    let source = small::family("qwen3", 2);
    let mut random = Random::new(8, 0);
    let documents = lines((0..24).map(|i| random_document(&mut random, 3 + i % 13, 59, 0).tokens));
    let trained = |seed, threads| {
        let run = run(&source, documents.clone(), |o| {
            (o.seed, o.threads, o.no_shuffle) = (Some(seed), Some(threads), Some(false));
            (o.epochs, o.lr) = (Some(2), Some(1e-2));
        });
        let losses: Vec<u64> = (0..run.metrics.len()).map(|step| run.number(step, "loss").to_bits()).collect();
        assert_eq!(losses.len(), 12);
        (losses, std::fs::read(run.model().join("model.safetensors")).unwrap())
    };
    let first = trained(1, 1);
    assert!(first == trained(1, 3), "the same seed");
    assert!(first.0 != trained(2, 1).0, "another seed");
}
