//! Progress bars: drawn on a terminal, silent elsewhere and for the first moment of work that turns out short.

use crate::metrics::StepMetrics;
use crate::report::smoothed;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// A bar over `total` units of work.
pub fn bar(total: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(4));
    bar.set_style(
        ProgressStyle::with_template("{msg} [{bar:30}] {percent}% {eta}")
            .expect("a constant template")
            .progress_chars("=> "),
    );
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Steps as a person follows them: a bar on a terminal, lines elsewhere.
pub struct StepLog {
    bar: Option<ProgressBar>,
    steps: u64,
    smoothed: Option<f64>,
    last_line: Option<Instant>,
    limit_tflops: Option<f64>,
}

impl StepLog {
    /// Before the first of `steps`, on a device that computes so much at the most.
    pub fn new(steps: u64, limit_tflops: Option<f64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr_with_hz(4));
            let style = ProgressStyle::with_template("step {pos}/{len} [{bar:24}] {msg} eta {eta}");
            bar.set_style(style.expect("a constant template").progress_chars("=> "));
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        StepLog { bar, steps, smoothed: None, last_line: None, limit_tflops }
    }

    /// Shows a step.
    pub fn step(&mut self, line: &StepMetrics) {
        let loss = match line.loss.is_finite() {
            true => smoothed(self.smoothed, line.loss, line.step),
            false => line.loss,
        };
        self.smoothed = loss.is_finite().then_some(loss).or(self.smoothed);
        let share = self
            .limit_tflops
            .map_or(String::new(), |limit| format!(" ({:.0}% of the limit)", 100.0 * line.model_tflops / limit));
        let text = format!(
            "loss {:.4} (smoothed {loss:.4}) norm {:.3} lr {:.2e} {:.0} tokens/s {:.3} TFLOP/s{share}",
            line.loss, line.grad_norm, line.lr, line.tokens_per_s, line.model_tflops
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position(line.step);
                bar.set_message(text);
            }
            None => {
                let due = self.last_line.is_none_or(|at| at.elapsed() >= Duration::from_secs(5));
                if due || line.step == self.steps {
                    say!("step {}/{} {text}", line.step, self.steps);
                    self.last_line = Some(Instant::now());
                }
            }
        }
    }

    /// A line of its own.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => say!("{text}"),
        }
    }

    /// Clears the way for other work's lines and bars while it goes on.
    pub fn pause<R>(&self, work: impl FnOnce() -> R) -> R {
        let Some(bar) = &self.bar else { return work() };
        bar.set_draw_target(ProgressDrawTarget::hidden());
        let result = work();
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(4));
        result
    }

    /// Leaves the bar as it stands.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}
