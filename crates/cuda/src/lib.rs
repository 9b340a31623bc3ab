//! The ops on an NVIDIA GPU: driver, kernels, launch geometry, matrix products.
//!
//! [`Device`] is a GPU, [`Runner`] runs one op at a time on operands that already lie in its memory. Nothing here is linked
//! to CUDA: the driver and cuBLASLt are opened at run time, so everything builds and tests without them, and a machine
//! without a GPU gets a sentence that says what is missing. Which op runs when is not decided here; nothing here knows a
//! layer or an optimizer, and nothing allocates device memory while ops run.

mod cublaslt;
mod device;
mod error;
pub mod executor;
mod gemm;
mod launch;
mod library;
mod memory;
mod modules;
mod pin;
mod places;
mod probe;
mod runner;
mod stream;

pub use device::Device;
pub use error::CudaError;
pub use executor::{Backend, Gpu, Preparation, StreamExecutor, StreamOptions};
pub use gemm::{Choice, Origin, Prepared};
pub use launch::{Args, Launch, Limits, Step, scratch_bytes, steps};
pub use memory::DeviceBuffer;
pub use pin::HostPinner;
pub use probe::{MIN_DRIVER, probe};
pub use runner::{Runner, Scratch};
pub use stream::{Event, Priority, Stream};
