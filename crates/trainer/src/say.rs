//! Words to the person who watches. Unlike `println!` these never panic: whoever read them may be gone (`| head`, or a
//! `| tee` that the same Ctrl-C ended), and a run must go on to save its model.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

static QUIET: AtomicBool = AtomicBool::new(false);

/// Says nothing more in this process, for programs that use the trainer as a library.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// A line on stderr: `say!`.
pub(crate) fn line_on_stderr(text: Arguments<'_>) {
    write(&mut std::io::stderr(), format_args!("{text}\n"));
}

/// A line on stdout: `tell!`.
pub(crate) fn line_on_stdout(text: Arguments<'_>) {
    write(&mut std::io::stdout(), format_args!("{text}\n"));
}

/// Part of a line on stdout, shown at once.
pub(crate) fn part_on_stdout(text: &str) {
    write(&mut std::io::stdout(), format_args!("{text}"));
}

fn write(stream: &mut impl Write, text: Arguments<'_>) {
    if !QUIET.load(Ordering::Relaxed) {
        // Nobody is left to be told of a failure to tell.
        let _ = stream.write_fmt(text).and_then(|()| stream.flush());
    }
}

/// A line on stderr: how the work goes.
macro_rules! say {
    ($($arg:tt)*) => { $crate::say::line_on_stderr(format_args!($($arg)*)) };
}

/// A line on stdout: what a command was asked for.
macro_rules! tell {
    ($($arg:tt)*) => { $crate::say::line_on_stdout(format_args!($($arg)*)) };
}
