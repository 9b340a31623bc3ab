//! [`Usage`]: how busy each lane was over a run, and which of them held the others up.

use megatrain_exec::RunReport;
use megatrain_planner::Program;
use megatrain_scheduler::LaneKind;

/// Busy seconds of each lane, summed over steps.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    steps: u64,
    seconds: f64,
    busy_seconds: Vec<f64>,
}

impl Usage {
    /// Adds a step that ended so many seconds after the one before.
    pub fn add(&mut self, report: &RunReport, seconds: f64) {
        self.steps += 1;
        self.seconds += seconds;
        self.busy_seconds.resize(report.lane_busy_seconds.len(), 0.0);
        self.busy_seconds.iter_mut().zip(&report.lane_busy_seconds).for_each(|(sum, busy)| *sum += busy);
    }

    /// Each lane's share of the time since the first step that was added: 0 to 1; none before that.
    pub fn shares(&self) -> Vec<f64> {
        match self.seconds > 0.0 {
            true => self.busy_seconds.iter().map(|busy| busy / self.seconds).collect(),
            false => Vec::new(),
        }
    }

    /// A line for people; empty before anything was added. `program` is the step's.
    pub fn describe(&self, program: &Program) -> String {
        if self.steps == 0 || self.seconds <= 0.0 {
            return String::new();
        }
        let lanes = &program.contract.lanes;
        let mut bytes = vec![0.0; lanes.len()];
        for entry in &program.commands {
            let lane = entry.lane.0 as usize;
            if matches!(lanes[lane].kind, LaneKind::H2d | LaneKind::D2h) {
                bytes[lane] += entry.cmd.work().bytes;
            }
        }
        let share = |lane: usize| self.busy_seconds[lane] / self.seconds;
        let mut parts = Vec::new();
        for (i, lane) in lanes.iter().enumerate() {
            let mut text = format!("{} {:.0}%", lane.kind, 100.0 * share(i));
            if bytes[i] > 0.0 && self.busy_seconds[i] > 0.0 {
                let gb_s = bytes[i] * self.steps as f64 / self.busy_seconds[i] / 1e9;
                text += &format!(" ({gb_s:.1} GB/s)");
            }
            parts.push(text);
        }
        let critical = (0..lanes.len()).max_by(|&a, &b| share(a).total_cmp(&share(b)));
        let critical =
            critical.map_or(String::new(), |lane| format!("; most of the time goes to {}", lanes[lane].kind));
        format!("busy     {}{critical}", parts.join(", "))
    }

    /// Prints the line.
    pub fn say(&self, program: &Program) {
        let text = self.describe(program);
        if !text.is_empty() {
            say!("{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megatrain_layers::ModelConfig;
    use megatrain_planner::{Model, Plan, Settings};

    #[test]
    fn shares_are_of_the_whole_time_and_the_busiest_lane_is_named() {
        let config = ModelConfig::preset("demo").unwrap();
        let settings = Settings::new(megatrain_base::DType::F32, 64, 1);
        let program = Plan::new(Model::new(&config), settings).unwrap().train(1).unwrap();
        let mut usage = Usage::default();
        assert_eq!(usage.describe(&program), "");
        assert!(usage.shares().is_empty());
        let report = RunReport { timeline: None, seconds: 9.0, lane_busy_seconds: vec![0.5, 1.5, 0.25, 1.0, 0.1] };
        usage.add(&report, 2.0);
        usage.add(&report, 2.0);
        assert_eq!(usage.shares(), [0.25, 0.75, 0.125, 0.5, 0.05]);
        let text = usage.describe(&program);
        assert!(text.contains("h2d 25% (0.0 GB/s), compute 75%, d2h 12%"), "{text}");
        assert!(text.ends_with("update 50%, data 5%; most of the time goes to compute"), "{text}");
    }
}
