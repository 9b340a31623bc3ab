//! [`MachineProfile`]: the figures of a machine that a simulation needs. Measured elsewhere; plain data here.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Figures of one machine. Bandwidths in GB/s (10^9 bytes a second), arithmetic in TFLOP/s. All ranks are alike; host
/// memory, the host's cores and files are shared by all.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineProfile {
    /// For people.
    pub name: String,
    /// Host to device, alone.
    pub h2d_gb_s: f64,
    /// Device to host, alone.
    pub d2h_gb_s: f64,
    /// Both directions of one rank's link together, summed.
    pub both_ways_gb_s: f64,
    /// Arithmetic of a compute lane, over the flops of one command; for commands without a rate of their own.
    pub compute_tflops: ComputeRate,
    /// Memory of a device, reads and writes summed; for commands without a rate of their own.
    pub device_gb_s: f64,
    /// Rates of ops, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ops: BTreeMap<String, OpRate>,
    /// Arithmetic of host tasks.
    pub host_tflops: f64,
    /// Memory of the host, reads and writes summed: all lanes and the link's traffic together.
    pub host_gb_s: f64,
    /// What the cores move when nothing else does, reads and writes summed: the rate of host tasks without one of their
    /// own [default: `host_gb_s`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_cores_gb_s: Option<f64>,
    /// Rates of host tasks, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tasks: BTreeMap<String, TaskRate>,
    /// Files.
    pub file_gb_s: f64,
    /// Between ranks: how fast one rank's part of a collective goes.
    pub peer_gb_s: f64,
    /// Added to every command of a device lane.
    pub launch_us: f64,
    /// From a record's completion to the start of another lane of the device that was waiting for it.
    pub event_us: f64,
    /// The same where one of the two lanes is the host's [default: `event_us`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hop_us: Option<f64>,
    /// The "device" is the host itself: kernels and copies take cores, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub device_is_host: bool,
}

/// How fast one kind of op goes: as long as the slower of arithmetic and memory.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpRate {
    /// Arithmetic, over **flops per byte** of one command (for attention that is the length of a document, whatever the
    /// number of them); without, arithmetic is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tflops: Option<ComputeRate>,
    /// Memory, in the bytes that the op says it moves; without, `device_gb_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gb_s: Option<f64>,
}

/// How fast one kind of host task goes alone.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskRate {
    /// Memory, in the bytes that the task says it moves.
    pub gb_s: f64,
    /// Share of the host's cores that it keeps busy meanwhile, above 0 to 1.
    pub cores: f64,
}

/// How fast a compute lane calculates.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ComputeRate {
    /// TFLOP/s at any size.
    Flat(f64),
    /// (flops of one command, or what else the figure is over; TFLOP/s), ascending; between points linear in the logarithm
    /// of the first, flat outside.
    Curve(Vec<(f64, f64)>),
}

impl ComputeRate {
    /// TFLOP/s for a command of so many flops.
    pub fn at(&self, flops: f64) -> f64 {
        match self {
            ComputeRate::Flat(rate) => *rate,
            ComputeRate::Curve(points) => {
                let above = points.partition_point(|(at, _)| *at <= flops);
                match (above.checked_sub(1).and_then(|below| points.get(below)), points.get(above)) {
                    (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (flops / x0).ln() / (x1 / x0).ln(),
                    (Some((_, rate)), None) | (None, Some((_, rate))) => *rate,
                    (None, None) => 0.0,
                }
            }
        }
    }

    /// The first figure that cannot be, and what is expected.
    fn fault(&self) -> Option<(f64, &'static str)> {
        match self {
            ComputeRate::Flat(rate) => (!positive(*rate)).then_some((*rate, "a positive number")),
            ComputeRate::Curve(points) if points.is_empty() => Some((0.0, "a number or a list of (flops, TFLOP/s)")),
            ComputeRate::Curve(points) => {
                let bad = points.iter().find(|(at, rate)| !positive(*at) || !positive(*rate));
                let falling = points.windows(2).find(|pair| pair[0].0 >= pair[1].0);
                let bad = bad.map(|(_, rate)| (*rate, "a list of positive numbers"));
                bad.or_else(|| falling.map(|pair| (pair[1].0, "a list ascending in flops")))
            }
        }
    }
}

fn positive(x: f64) -> bool {
    x.is_finite() && x > 0.0
}

/// A profile with an impossible figure.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("machine profile `{profile}`: {figure} is {value}; it must be {expected}")]
pub struct ProfileError {
    /// Name of the profile.
    pub profile: String,
    /// Name of the figure.
    pub figure: String,
    /// Its value.
    pub value: f64,
    /// What it should be.
    pub expected: &'static str,
}

impl MachineProfile {
    /// Checks that rates are positive and delays are not negative.
    ///
    /// # Errors
    /// The first figure that is not so.
    pub fn check(&self) -> Result<(), ProfileError> {
        let error = |figure: &str, value, expected| {
            Err(ProfileError { profile: self.name.clone(), figure: figure.into(), value, expected })
        };
        let rates = [
            ("h2d_gb_s", self.h2d_gb_s),
            ("d2h_gb_s", self.d2h_gb_s),
            ("both_ways_gb_s", self.both_ways_gb_s),
            ("device_gb_s", self.device_gb_s),
            ("host_tflops", self.host_tflops),
            ("host_gb_s", self.host_gb_s),
            ("host_cores_gb_s", self.cores_gb_s()),
            ("file_gb_s", self.file_gb_s),
            ("peer_gb_s", self.peer_gb_s),
        ];
        if let Some((figure, value)) = rates.into_iter().find(|(_, value)| !positive(*value)) {
            return error(figure, value, "a positive number");
        }
        if let Some((value, expected)) = self.compute_tflops.fault() {
            return error("compute_tflops", value, expected);
        }
        for (name, op) in &self.ops {
            if let Some((value, expected)) = op.tflops.as_ref().and_then(ComputeRate::fault) {
                return error(&format!("tflops of op `{name}`"), value, expected);
            }
            if let Some(value) = op.gb_s.filter(|rate| !positive(*rate)) {
                return error(&format!("gb_s of op `{name}`"), value, "a positive number");
            }
        }
        for (name, task) in &self.tasks {
            if !positive(task.gb_s) {
                return error(&format!("gb_s of task `{name}`"), task.gb_s, "a positive number");
            }
            if !(positive(task.cores) && task.cores <= 1.0) {
                return error(&format!("cores of task `{name}`"), task.cores, "a share: above 0 and at most 1");
            }
        }
        let delays = [("launch_us", self.launch_us), ("event_us", self.event_us), ("hop_us", self.hop_us())];
        match delays.into_iter().find(|(_, value)| !(value.is_finite() && *value >= 0.0)) {
            Some((figure, value)) => error(figure, value, "zero or a positive number"),
            None => Ok(()),
        }
    }

    /// `host_cores_gb_s`, or what stands for it.
    pub(crate) fn cores_gb_s(&self) -> f64 {
        self.host_cores_gb_s.unwrap_or(self.host_gb_s)
    }

    /// `hop_us`, or what stands for it.
    pub(crate) fn hop_us(&self) -> f64 {
        self.hop_us.unwrap_or(self.event_us)
    }

    /// Rate of a host task.
    pub(crate) fn task(&self, name: &str) -> TaskRate {
        self.tasks.get(name).copied().unwrap_or(TaskRate { gb_s: self.cores_gb_s(), cores: 1.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_log_linear_and_flat_outside() {
        let curve = ComputeRate::Curve(vec![(1e6, 1.0), (1e8, 3.0), (1e9, 3.5)]);
        for (flops, rate) in [(1.0, 1.0), (1e6, 1.0), (1e7, 2.0), (1e8, 3.0), (1e12, 3.5)] {
            assert!((curve.at(flops) - rate).abs() < 1e-12, "{flops}");
        }
    }

    #[test]
    fn what_a_profile_does_not_say_is_not_written_and_has_a_default() {
        let text = r#"{"name":"m","h2d_gb_s":20.0,"d2h_gb_s":20.0,"both_ways_gb_s":36.0,"compute_tflops":100.0,"device_gb_s":900.0,"host_tflops":1.0,"host_gb_s":80.0,"file_gb_s":2.0,"peer_gb_s":200.0,"launch_us":3.0,"event_us":2.0}"#;
        let profile: MachineProfile = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&profile).unwrap(), text);
        assert_eq!((profile.cores_gb_s(), profile.hop_us()), (80.0, 2.0));
        assert_eq!(profile.task("update"), TaskRate { gb_s: 80.0, cores: 1.0 });
    }

    #[test]
    fn profiles_are_plain_json_and_bad_figures_are_named() {
        let text = r#"{"name": "m", "h2d_gb_s": 20, "d2h_gb_s": 20, "both_ways_gb_s": 36, "compute_tflops": 100,
            "device_gb_s": 900, "host_tflops": 1, "host_gb_s": 80, "file_gb_s": 2, "peer_gb_s": 200, "launch_us": 3,
            "event_us": 2}"#;
        let profile: MachineProfile = serde_json::from_str(text).unwrap();
        assert_eq!(profile.check(), Ok(()));
        let curve = text.replace("100,", "[[1e9, 50], [1e10, 100]],");
        let curve: MachineProfile = serde_json::from_str(&curve).unwrap();
        assert_eq!(curve.compute_tflops.at(1e10), 100.0);
        let error = MachineProfile { host_gb_s: 0.0, ..profile.clone() }.check().unwrap_err();
        assert_eq!(error.to_string(), "machine profile `m`: host_gb_s is 0; it must be a positive number");
        let compute_tflops = ComputeRate::Curve(vec![(2.0, 1.0), (1.0, 1.0)]);
        assert!(MachineProfile { compute_tflops, ..profile.clone() }.check().is_err());
        let tasks = BTreeMap::from([("update".to_owned(), TaskRate { gb_s: 100.0, cores: 1.5 })]);
        let error = MachineProfile { tasks, ..profile.clone() }.check().unwrap_err().to_string();
        assert!(error.contains("cores of task `update` is 1.5; it must be a share"), "{error}");
        let ops = BTreeMap::from([("add".to_owned(), OpRate { tflops: None, gb_s: Some(-1.0) })]);
        let error = MachineProfile { ops, ..profile.clone() }.check().unwrap_err().to_string();
        assert!(error.contains("gb_s of op `add` is -1"), "{error}");
        assert!(serde_json::from_str::<MachineProfile>(&text.replace("h2d_gb_s", "h2d")).is_err());
    }
}
