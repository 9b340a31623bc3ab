//! [`Backend`]: what the issue thread asks of a device.

use crate::CudaError;
use megatrain_ops::Op;
use megatrain_scheduler::Lane;
use std::time::Duration;

/// A device with streams. All calls but [`Backend::synchronize`] and [`Backend::prepare`] return before the work is done.
/// Streams have the numbers of the contract's lanes; events are made once and recorded any number of times.
pub trait Backend: Send + 'static {
    /// A point in a stream.
    type Event: Send;

    /// Called once on the issue thread before anything else: makes a stream for each of these lanes.
    ///
    /// # Errors
    /// What the device says.
    fn start(&mut self, lanes: &[Lane]) -> Result<(), CudaError>;

    /// Called before a program that was not run before, with its ops and the addresses of their operands, while the device
    /// is at rest. `room` is the address and length of device memory that holds nothing then.
    ///
    /// # Errors
    /// An op that cannot run here, or what the device says.
    ///
    /// # Safety
    /// Until the call returns nobody else uses the room.
    unsafe fn prepare(&mut self, ops: &[(Op, Vec<u64>)], room: (u64, u64)) -> Result<(), CudaError>;

    /// A new event; with a time for [`Backend::since_us`], or cheaper.
    ///
    /// # Errors
    /// What the device says.
    fn event(&mut self, timed: bool) -> Result<Self::Event, CudaError>;

    /// Marks this point of a stream.
    ///
    /// # Errors
    /// What the device says.
    fn record(&mut self, stream: usize, event: &Self::Event) -> Result<(), CudaError>;

    /// Holds a stream until the event's last recording is over.
    ///
    /// # Errors
    /// What the device says.
    fn wait(&mut self, stream: usize, event: &Self::Event) -> Result<(), CudaError>;

    /// Whether the event's last recording is over.
    ///
    /// # Errors
    /// What the device says, faults of earlier commands included.
    fn is_done(&mut self, event: &Self::Event) -> Result<bool, CudaError>;

    /// Microseconds between two timed events that are over.
    ///
    /// # Errors
    /// What the device says.
    fn since_us(&mut self, earlier: &Self::Event, later: &Self::Event) -> Result<f64, CudaError>;

    /// Copies bytes, to, from or on the device.
    ///
    /// # Errors
    /// What the device says.
    ///
    /// # Safety
    /// Both ranges are valid, and until the stream has passed this point nobody else writes them, nor reads the target.
    unsafe fn copy(&mut self, stream: usize, to: u64, from: u64, len_bytes: u64) -> Result<(), CudaError>;

    /// Runs an op on operands at these addresses, in the order of [`Op::operands`].
    ///
    /// # Errors
    /// What the device says.
    ///
    /// # Safety
    /// As [`crate::Runner::run`] says of operands.
    unsafe fn launch(&mut self, stream: usize, op: &Op, addresses: &[u64]) -> Result<(), CudaError>;

    /// Fills device memory with 0xFF bytes: NaN in every float type.
    ///
    /// # Errors
    /// What the device says.
    ///
    /// # Safety
    /// As for the target of [`Backend::copy`].
    unsafe fn poison(&mut self, stream: usize, address: u64, len_bytes: u64) -> Result<(), CudaError>;

    /// Holds a stream for so long.
    ///
    /// # Errors
    /// What the device says.
    fn delay(&mut self, stream: usize, time: Duration) -> Result<(), CudaError>;

    /// Returns once everything issued is done.
    ///
    /// # Errors
    /// What the device says, faults of earlier commands included.
    fn synchronize(&mut self) -> Result<(), CudaError>;
}
