//! [`ExecutorOptions`]: how programs are run, never what they compute: bits are the same under every option.

use megatrain_exec::Delay;

/// Which legal order of the commands is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Program order, one command at a time; `run` returns when the program is done.
    Inline,
    /// One thread per lane; `run` returns when the program is enqueued, and the next one may start while this one ends.
    #[default]
    Threads,
    /// One command at a time in a random order that the events allow, drawn from this seed, across programs too. Work is
    /// done inside `Ticket::wait`, the next `run`, or when the executor is dropped.
    Shuffle(u64),
}

/// How an executor runs its programs.
#[derive(Clone, Debug, Default)]
pub struct ExecutorOptions {
    /// The order.
    pub mode: Mode,
    /// Makes reads of bytes that nobody wrote show: fills undefined regions with NaN when a program is issued to an idle
    /// executor, and what a command declares `Write` before the command runs. For tests; costs memory traffic.
    pub poison: bool,
    /// Whether reports carry a timeline.
    pub trace: bool,
    /// Threads that kernels and host tasks compute with; 0 for as many as the machine has. Lanes have a thread each
    /// besides, which mostly waits.
    pub threads: usize,
    /// Slows lanes down, for tests.
    pub delay: Option<Delay>,
}
