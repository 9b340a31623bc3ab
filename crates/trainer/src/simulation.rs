//! What the simulator says of a step, for `megatrain plan`.

use anyhow::Result;
use megatrain_planner::{Plan, Program};

/// The simulated step in a few lines.
///
/// # Errors
/// A program that does not verify: a bug.
pub fn describe(program: &Program, _plan: &Plan) -> Result<String> {
    Ok(format!("program  {}: {} commands", program.name, program.commands.len()))
}
