//! Progress bars: drawn on a terminal, silent elsewhere and for the first moment of work that turns out short.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

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
