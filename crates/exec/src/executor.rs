//! [`Executor`]: what runs programs, as a trainer sees it.

use crate::{ExecError, Ticket};
use megatrain_base::{Command, Element, Span, Tensor};
use megatrain_ops::Op;
use megatrain_scheduler::{HostTasks, Program};
use std::sync::Arc;

/// Runs programs of one contract. Programs take effect in the order of issue; after a failure an executor stops for good,
/// since memory may be half written. Dropping it finishes what was issued. Host tasks must not call the executor that
/// runs them.
pub trait Executor<T: Command>: Send + Sync {
    /// Issues a program.
    ///
    /// # Errors
    /// If the program does not fit the contract or cannot run here (nothing of it has run then, and the executor goes on),
    /// or if an earlier program failed. A failure of this program is told by [`Ticket::wait`].
    fn run(&self, program: Arc<Program<Op, T>>, tasks: Arc<dyn HostTasks<T>>) -> Result<Ticket, ExecError>;

    /// Returns once every issued program is finished, failed ones included.
    fn wait_idle(&self);

    /// Copies bytes of host memory out, once every issued program is finished.
    ///
    /// # Errors
    /// [`ExecError::Memory`] if the span leaves its region, is not as long as `out`, or is out of the host's reach.
    fn read_bytes(&self, span: &Span, out: &mut [u8]) -> Result<(), ExecError>;

    /// Overwrites bytes of host memory, once every issued program is finished.
    ///
    /// # Errors
    /// As [`Executor::read_bytes`].
    fn write_bytes(&self, span: &Span, bytes: &[u8]) -> Result<(), ExecError>;
}

impl<T: Command> dyn Executor<T> + '_ {
    /// The elements of a tensor in host memory, read once every issued program is finished.
    ///
    /// # Errors
    /// [`ExecError::Memory`] if the tensor leaves its region or has another dtype than `E`.
    pub fn read<E: Element>(&self, tensor: &Tensor) -> Result<Vec<E>, ExecError> {
        fits::<E>(tensor)?;
        let mut out = vec![E::from_f32(0.0); tensor.elems()];
        // SAFETY: the vector's elements are initialised, accept any bits (`Element`), and are borrowed here alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<u8>(), size_of_val(&out[..])) };
        self.read_bytes(&tensor.span, bytes)?;
        Ok(out)
    }

    /// Overwrites a tensor in host memory once every issued program is finished.
    ///
    /// # Errors
    /// As [`Executor::read_bytes`], if `E` is another dtype than the tensor's, or `values` has another length.
    pub fn write<E: Element>(&self, tensor: &Tensor, values: &[E]) -> Result<(), ExecError> {
        fits::<E>(tensor)?;
        if values.len() != tensor.elems() {
            return Err(ExecError::Memory(format!("{} values for {tensor}", values.len())));
        }
        // SAFETY: elements are plain bits without padding (`Element`), borrowed for the call.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        self.write_bytes(&tensor.span, bytes)
    }
}

fn fits<E: Element>(tensor: &Tensor) -> Result<(), ExecError> {
    let whole = tensor.span.len_bytes == (tensor.elems() * size_of::<E>()) as u64;
    if tensor.dtype != E::DTYPE || !whole {
        return Err(ExecError::Memory(format!("{tensor} cannot be taken as {}", E::DTYPE)));
    }
    Ok(())
}
