//! `megatrain bench`: this machine's speed at whole steps.

mod cpu;
mod machine;
mod step;

use anyhow::Result;
use clap::Subcommand;

/// The benchmarks there are.
#[derive(Subcommand, Clone, Debug)]
pub enum BenchCommand {
    /// Whole steps on the processor, beside its matrix-product peak and, if a command for it is given, a peer.
    Cpu(cpu::BenchOptions),
    /// The figures of this machine that the simulator needs, for `megatrain plan --profile`.
    Machine(machine::MachineOptions),
    /// Whole steps of a published shape with random weights, on the best device there is.
    Step(Box<step::StepOptions>),
}

/// Runs a benchmark and prints its table.
///
/// # Errors
/// Options that make no sense, or what the benchmark fails with.
pub fn run(command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Cpu(options) => cpu::run(options),
        BenchCommand::Machine(options) => machine::run(options),
        BenchCommand::Step(options) => step::run(options),
    }
}
