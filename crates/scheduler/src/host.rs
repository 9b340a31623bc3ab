//! [`HostTasks`]: who runs the host commands of a program. Executors call it; they know no optimizer and no data.

use megatrain_base::Operands;

/// A host task that failed. The executor starts no further task and reports it with the command's label.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TaskError(pub String);

/// Runs host tasks. One value per run of a program: it carries that step's scalars (learning rate, step number).
pub trait HostTasks<T>: Send + Sync {
    /// Runs one task on the memory it declared.
    ///
    /// # Errors
    /// Anything that must stop the run.
    fn run(&self, task: &T, operands: &Operands<'_>) -> Result<(), TaskError>;
}
