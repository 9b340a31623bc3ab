//! [`MachineProfile`]: the figures of a machine that a simulation needs. Measured elsewhere; plain data here.

use serde::{Deserialize, Serialize};

/// Figures of one machine. Bandwidths in GB/s (10^9 bytes a second), arithmetic in TFLOP/s. All ranks are alike; host
/// memory and files are shared by all.
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
    /// Arithmetic of a compute lane.
    pub compute_tflops: ComputeRate,
    /// Memory of a device, reads and writes summed.
    pub device_gb_s: f64,
    /// Arithmetic of host tasks.
    pub host_tflops: f64,
    /// Memory of the host, reads and writes summed, all lanes together.
    pub host_gb_s: f64,
    /// Files.
    pub file_gb_s: f64,
    /// Between ranks: how fast one rank's part of a collective goes.
    pub peer_gb_s: f64,
    /// Added to every command of a device lane.
    pub launch_us: f64,
    /// From a record's completion to the start of another lane that was waiting for it.
    pub event_us: f64,
}

/// How fast a compute lane calculates.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ComputeRate {
    /// TFLOP/s at any size.
    Flat(f64),
    /// (flops of one command, TFLOP/s), ascending in flops; between points linear in the logarithm of the flops, flat
    /// outside.
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
}

/// A profile with an impossible figure.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("machine profile `{profile}`: {figure} is {value}; it must be {expected}")]
pub struct ProfileError {
    /// Name of the profile.
    pub profile: String,
    /// Name of the figure.
    pub figure: &'static str,
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
        let error = |figure, value, expected| Err(ProfileError { profile: self.name.clone(), figure, value, expected });
        let rates = [
            ("h2d_gb_s", self.h2d_gb_s),
            ("d2h_gb_s", self.d2h_gb_s),
            ("both_ways_gb_s", self.both_ways_gb_s),
            ("device_gb_s", self.device_gb_s),
            ("host_tflops", self.host_tflops),
            ("host_gb_s", self.host_gb_s),
            ("file_gb_s", self.file_gb_s),
            ("peer_gb_s", self.peer_gb_s),
        ];
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if let Some((figure, value)) = rates.into_iter().find(|(_, value)| !positive(*value)) {
            return error(figure, value, "a positive number");
        }
        match &self.compute_tflops {
            ComputeRate::Flat(rate) if !positive(*rate) => return error("compute_tflops", *rate, "a positive number"),
            ComputeRate::Flat(_) => {}
            ComputeRate::Curve(points) => {
                let figure = "compute_tflops";
                if points.is_empty() {
                    return error(figure, 0.0, "a number or a list of (flops, TFLOP/s)");
                }
                if let Some((_, rate)) = points.iter().find(|(at, rate)| !positive(*at) || !positive(*rate)) {
                    return error(figure, *rate, "a list of positive numbers");
                }
                if let Some(pair) = points.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
                    return error(figure, pair[1].0, "a list ascending in flops");
                }
            }
        }
        let delays = [("launch_us", self.launch_us), ("event_us", self.event_us)];
        match delays.into_iter().find(|(_, value)| !(value.is_finite() && *value >= 0.0)) {
            Some((figure, value)) => error(figure, value, "zero or a positive number"),
            None => Ok(()),
        }
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
        assert!(MachineProfile { compute_tflops, ..profile }.check().is_err());
        assert!(serde_json::from_str::<MachineProfile>(&text.replace("h2d_gb_s", "h2d")).is_err());
    }
}
