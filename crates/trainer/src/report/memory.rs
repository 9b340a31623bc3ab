//! [`MemoryFacts`]: the memory plan by group, and what was used in the end.

use crate::session::{Placement, arena_plan};
use megatrain_arena::Kind;
use megatrain_planner::Plan;
use serde::Serialize;

/// A group of regions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Group {
    /// For people.
    pub name: String,
    /// How many.
    pub regions: usize,
    /// Their size together.
    pub bytes: u64,
}

/// The memory plan by group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MemoryFacts {
    /// Host memory: the arena's groups, and what the process takes beside them.
    pub host: Vec<Group>,
    /// The process's largest resident set, once known.
    pub host_used_bytes: Option<u64>,
    /// The device heap, which is a part of host memory where the processor computes.
    pub device: Vec<Group>,
    /// Whether the device has memory of its own.
    pub device_is_apart: bool,
    /// What the run took of the GPU's memory, driver and kernels included, once known.
    pub device_used_bytes: Option<u64>,
}

/// What the parts of the device heap are for, by the beginning of the name of the boundary event that guards them.
const DEVICE_GROUPS: [(&str, &str); 7] = [
    ("slot_free", "weights: block slots"),
    ("head_slot_free", "weights: head"),
    ("gradient_out", "gradients: blocks"),
    ("head_gradient_out", "gradients: head"),
    ("device_inputs", "inputs"),
    ("row_index", "inputs"),
    ("activations_free", "activations, logits and workspace"),
];

impl MemoryFacts {
    /// Groups a plan's regions.
    pub fn of(plan: &Plan, placement: Placement<'_>) -> Self {
        let arena = arena_plan(plan, placement);
        let mut host: Vec<Group> = Kind::ALL
            .into_iter()
            .map(|kind| {
                let sizes = arena.regions().iter().filter(|r| r.kind == kind).map(|r| r.bytes);
                Group { name: kind.to_string(), regions: sizes.clone().count(), bytes: sizes.sum() }
            })
            .filter(|group| group.bytes > 0)
            .collect();
        let allowances = arena.allowances().iter();
        host.extend(allowances.map(|(name, bytes)| Group { name: name.clone(), regions: 0, bytes: *bytes }));
        MemoryFacts {
            host,
            host_used_bytes: None,
            device: device(plan),
            device_is_apart: placement.gpu.is_some(),
            device_used_bytes: None,
        }
    }
}

/// The device heap by what guards its parts; what nothing guards is padding.
fn device(plan: &Plan) -> Vec<Group> {
    let heap = plan.device_region();
    let mut groups: Vec<Group> = Vec::new();
    let mut add = |name: &str, bytes: u64| match groups.iter_mut().find(|group| group.name == name) {
        Some(group) => (group.regions, group.bytes) = (group.regions + 1, group.bytes + bytes),
        None if bytes > 0 => groups.push(Group { name: name.into(), regions: 1, bytes }),
        None => {}
    };
    let mut rest = plan.regions()[heap.0 as usize].len_bytes;
    for boundary in &plan.contract().boundaries {
        let stem = boundary.name.split('[').next().unwrap_or_default();
        for span in boundary.guards.iter().filter(|span| span.region == heap) {
            let name = DEVICE_GROUPS.iter().find(|(guard, _)| *guard == stem).map_or("other", |(_, name)| name);
            add(name, span.len_bytes);
            rest = rest.saturating_sub(span.len_bytes);
        }
    }
    add("padding", rest);
    groups
}

/// The largest resident set of this process so far, where the system tells.
pub fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use megatrain_base::DType;
    use megatrain_layers::ModelConfig;
    use megatrain_planner::{Model, Settings};

    #[test]
    fn groups_add_up_to_the_plan_and_every_part_has_a_name() {
        for dtype in [DType::F32, DType::Bf16] {
            let model = Model::new(&ModelConfig::preset("demo").unwrap());
            let plan = Plan::new(model, Settings::new(dtype, 64, 2)).unwrap();
            let placement = Placement::default();
            let facts = MemoryFacts::of(&plan, placement);
            let heap = plan.regions()[plan.device_region().0 as usize].len_bytes;
            assert_eq!(facts.device.iter().map(|g| g.bytes).sum::<u64>(), heap);
            assert_eq!(
                facts.host.iter().map(|g| g.bytes).sum::<u64>(),
                crate::session::planned_bytes(&plan, placement)
            );
            assert!(facts.device.iter().all(|g| g.name != "other"), "{:?}", facts.device);
            let slots = facts.device.iter().find(|g| g.name == "weights: block slots").unwrap();
            assert_eq!(slots.regions, plan.slots());
        }
    }
}
