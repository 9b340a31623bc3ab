//! `megatrain bench`: this machine's speed at whole steps, and at what they are made of.

mod cpu;
mod data;
mod machine;
mod ops;
mod step;

use crate::options::Device;
use anyhow::Result;
use clap::Subcommand;

/// The benchmarks there are.
#[derive(Subcommand, Clone, Debug)]
pub enum BenchCommand {
    /// Whole steps on the processor, beside its matrix-product peak and, if a command for it is given, a peer.
    Cpu(cpu::BenchOptions),
    /// Files into tokens and steps, beside what a GPU takes and, if a command for it is given, a peer.
    Data(data::DataBenchOptions),
    /// The figures of this machine that the simulator needs, for `megatrain plan --profile`.
    Machine(machine::MachineOptions),
    /// Every op at the shapes of a model, beside what the device's memory or arithmetic allows.
    Ops(ops::OpsOptions),
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
        BenchCommand::Data(options) => data::run(options),
        BenchCommand::Machine(options) => machine::run(options),
        BenchCommand::Ops(options) => ops::run(options),
        BenchCommand::Step(options) => step::run(options),
    }
}

/// What is measured: a GPU where there is a driver. One that cannot be opened is then an error, since a processor's figures
/// at a GPU's sizes are of no use.
fn measured(asked: Device) -> Device {
    match asked {
        Device::Auto if megatrain_cuda::probe().is_ok() => Device::Cuda(0),
        Device::Auto => Device::Cpu,
        asked => asked,
    }
}
