//! Runs programs on a machine without a GPU: the same commands, lanes, events and buffers that a GPU runs, with fast CPU
//! kernels for the ops.
//!
//! [`CpuExecutor`] takes a contract, one block of memory per region and programs of that contract; [`kernels`] computes.
//! Neither decides an order, knows a layer or an optimizer: the order is the program's, host tasks run through
//! [`megatrain_scheduler::HostTasks`].

mod claims;
mod event;
mod executor;
mod job;
pub mod kernels;
mod options;
mod shared;
mod shuffle;
mod threads;

pub use executor::CpuExecutor;
pub use options::{ExecutorOptions, Mode};
