//! [`History`]: the figures of all steps, in bounded memory. A run of a million steps must not make a page of 100 MB.

use crate::metrics::StepMetrics;
use serde_json::{Value, json};

/// Rows are thinned out when there are this many.
const MAX_ROWS: usize = 8192;

/// Of so many neighbours the extreme ones stay.
const STRETCH: usize = 8;

/// Steps over which the loss is smoothed: the weight of a step is one in so many.
const SMOOTHING_STEPS: u64 = 10;

/// The smoothed loss after a step, counted from 1: the mean of all at first, then an exponential one.
pub fn smoothed(before: Option<f64>, loss: f64, step: u64) -> f64 {
    before.map_or(loss, |before| before + (loss - before) / step.clamp(1, SMOOTHING_STEPS) as f64)
}

/// A step as it is drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Row {
    step: u64,
    loss: f64,
    smoothed: f64,
    grad_norm: f64,
    lr: f64,
    tokens_per_s: f64,
    model_tflops: f64,
    seconds: f64,
}

/// The figures of all steps.
#[derive(Clone, Debug, Default)]
pub struct History {
    rows: Vec<Row>,
    smoothed: Option<f64>,
    /// Steps noted.
    steps: u64,
    tokens: u64,
    seconds: f64,
    /// Step and reason.
    skipped: Vec<(u64, String)>,
    skipped_steps: u64,
    /// Step and loss.
    evaluations: Vec<(u64, f64)>,
}

/// Skipped steps that are listed with their reason.
const LISTED_SKIPS: usize = 50;

impl History {
    /// Notes a step. It and what came after it before are forgotten first: a run that went back to a checkpoint does steps
    /// again.
    pub fn step(&mut self, metrics: &StepMetrics) {
        self.rows.truncate(self.rows.partition_point(|row| row.step < metrics.step));
        if metrics.loss.is_finite() {
            self.smoothed = Some(smoothed(self.smoothed, metrics.loss, metrics.step));
        }
        self.rows.push(Row {
            step: metrics.step,
            loss: metrics.loss,
            smoothed: self.smoothed.unwrap_or(f64::NAN),
            grad_norm: metrics.grad_norm,
            lr: metrics.lr,
            tokens_per_s: metrics.tokens_per_s,
            model_tflops: metrics.model_tflops,
            seconds: metrics.seconds,
        });
        self.steps += 1;
        self.tokens += metrics.tokens;
        self.seconds += metrics.seconds;
        if let Some(reason) = &metrics.skipped {
            self.skipped_steps += 1;
            if self.skipped.len() < LISTED_SKIPS {
                self.skipped.push((metrics.step, reason.clone()));
            }
        }
        if self.rows.len() >= MAX_ROWS {
            self.thin_out();
        }
    }

    /// Notes a loss on held-out data after that many steps.
    pub fn evaluation(&mut self, step: u64, loss: f64) {
        self.evaluations.retain(|(at, _)| *at < step);
        self.evaluations.push((step, loss));
    }

    /// Keeps of each stretch of rows those with the least and the greatest loss, the greatest norm and the slowest: every row
    /// is a step as it was, and no spike is lost.
    fn thin_out(&mut self) {
        let mut kept = Vec::with_capacity(self.rows.len() / 2 + 1);
        for stretch in self.rows.chunks(STRETCH) {
            let greatest = |key: fn(&Row) -> f64| {
                (0..stretch.len()).max_by(|&a, &b| key(&stretch[a]).total_cmp(&key(&stretch[b]))).unwrap_or(0)
            };
            let mut chosen =
                [greatest(|r| -r.loss), greatest(|r| r.loss), greatest(|r| r.grad_norm), greatest(|r| r.seconds)];
            chosen.sort_unstable();
            kept.extend((0..stretch.len()).filter(|i| chosen.contains(i)).map(|i| stretch[i]));
        }
        self.rows = kept;
    }

    /// Columns for the page. What is not a number is null there, and a gap in the curve.
    pub fn to_json(&self) -> Value {
        let column = |get: fn(&Row) -> f64| -> Value { self.rows.iter().map(|row| short(get(row))).collect() };
        json!({
            "rows": {
                "step": self.rows.iter().map(|row| row.step).collect::<Vec<_>>(),
                "loss": column(|r| r.loss),
                "smoothed": column(|r| r.smoothed),
                "grad_norm": column(|r| r.grad_norm),
                "lr": column(|r| r.lr),
                "tokens_per_s": column(|r| r.tokens_per_s),
                "model_tflops": column(|r| r.model_tflops),
            },
            "smoothing_steps": SMOOTHING_STEPS,
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": short(self.seconds),
            "skipped": self.skipped,
            "skipped_steps": self.skipped_steps,
            "evaluations": self.evaluations.iter().map(|(step, loss)| json!([step, short(*loss)])).collect::<Vec<_>>(),
        })
    }
}

/// Six digits are more than a screen shows. Null for what is no number.
fn short(x: f64) -> Value {
    if !x.is_finite() {
        return Value::Null;
    }
    let text = format!("{x:.5e}");
    text.parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(step: u64, loss: f64) -> StepMetrics {
        StepMetrics {
            step,
            loss,
            grad_norm: 1.0,
            lr: 0.1,
            tokens: 10,
            targets: 10,
            seconds: 0.5,
            tokens_per_s: 20.0,
            model_tflops: 0.1,
            skipped: loss.is_nan().then(|| "NaN".to_owned()),
        }
    }

    #[test]
    fn long_runs_stay_small_and_keep_their_spikes() {
        let mut history = History::default();
        for step in 1..=200_000 {
            history.step(&metrics(step, if step == 77_777 { 99.0 } else { 2.0 }));
        }
        assert!(history.rows.len() < MAX_ROWS);
        let spike: Vec<_> = history.rows.iter().filter(|row| row.loss == 99.0).map(|row| row.step).collect();
        assert_eq!(spike, [77_777]);
        assert!(history.rows.is_sorted_by(|a, b| a.step < b.step));
        let json = history.to_json();
        assert_eq!((&json["steps"], &json["tokens"]), (&json!(200_000), &json!(2_000_000)));
        assert!(json.to_string().len() < 700_000);
    }

    #[test]
    fn what_is_no_number_is_a_gap_and_leaves_the_smoothed_loss_alone() {
        let mut history = History::default();
        history.step(&metrics(1, 4.0));
        history.step(&metrics(2, f64::NAN));
        history.step(&metrics(3, 3.0));
        let json = history.to_json();
        assert_eq!(json["rows"]["loss"], json!([4.0, null, 3.0]));
        assert_eq!(json["rows"]["smoothed"], json!([4.0, 4.0, 3.66667]));
        assert_eq!(json["skipped"], json!([[2, "NaN"]]));
    }

    #[test]
    fn a_step_done_again_replaces_the_first_try() {
        let mut history = History::default();
        (1..=5).for_each(|step| history.step(&metrics(step, 4.0)));
        history.step(&metrics(4, 2.0));
        assert_eq!(history.to_json()["rows"]["step"], json!([1, 2, 3, 4]));
    }
}
