//! [`Runner`]: runs one op on operands in device memory.

use crate::gemm::{self, Choice, Gemm, Prepared};
use crate::launch::{self, Args, Launch, Step};
use crate::modules::Modules;
use crate::{CudaError, Device, Stream};
use cudarc::driver::result;
use megatrain_ops::{Matmul, Op};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Memory for what ops need while they run, 256-byte aligned. Ops of one stream may share it: they run in order.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    /// First byte.
    pub address: u64,
    /// Length in bytes, at least [`crate::scratch_bytes`] of every op that is given it.
    pub len_bytes: u64,
}

/// The kernels and cuBLASLt, loaded on one GPU.
#[derive(Debug)]
pub struct Runner {
    modules: Modules,
    gemm: Gemm,
    /// Last, so that it outlives what is loaded on it.
    device: Arc<Device>,
}

impl Runner {
    /// Loads the kernels from `folder`, or from where [`megatrain_kernels::Manifest::find`] finds them, and cuBLASLt. The
    /// algorithms of products are remembered in the folder that MEGATRAIN_CACHE names (`off`: nowhere), or else in
    /// `megatrain` in XDG_CACHE_HOME or `~/.cache`.
    ///
    /// # Errors
    /// What is missing, and where it was looked for.
    pub fn new(device: &Arc<Device>, folder: Option<&Path>) -> Result<Self, CudaError> {
        Runner::with_cache(device, folder, gemm::default_cache().as_deref())
    }

    /// As [`Runner::new`], with the algorithms of products remembered in the folder `cache`, or nowhere.
    ///
    /// # Errors
    /// What is missing, and where it was looked for.
    pub fn with_cache(device: &Arc<Device>, folder: Option<&Path>, cache: Option<&Path>) -> Result<Self, CudaError> {
        device.make_current()?;
        Ok(Runner { device: device.clone(), modules: Modules::load(device, folder)?, gemm: Gemm::new(device, cache)? })
    }

    /// Chooses the algorithm of every product that has none yet: the one remembered from an earlier run, or the fastest of
    /// those that cuBLASLt offers, timed here and remembered. To be called once before a program first runs; what is then
    /// chosen stays for this runner's life. A product that runs without it takes what is remembered, or cuBLASLt's first
    /// choice.
    ///
    /// `products` come with the addresses that a, b and c will have, of which only the alignment matters. They are timed on
    /// operands in `room`, whose contents are lost. A product that finds too little room there is left to cuBLASLt's first
    /// choice, with a note. `progress` is called with how many products have been timed and how many will be; it must not use
    /// this runner.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for a product that cuBLASLt has no algorithm for, or what the driver or cuBLASLt says.
    ///
    /// # Panics
    /// If the scratch memory is smaller than [`crate::scratch_bytes`] of a product.
    ///
    /// # Safety
    /// [`Op::check`] must accept the products. Until this returns, `room` and `scratch` must be memory of this GPU, apart from
    /// each other, that nobody else uses.
    pub unsafe fn prepare(
        &self,
        products: &[(Matmul, [u64; 3])],
        room: Scratch,
        scratch: Scratch,
        stream: &Stream,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Prepared, CudaError> {
        assert!(scratch.len_bytes >= launch::GEMM_SCRATCH_BYTES, "products: too little scratch memory");
        // SAFETY: the caller's promise.
        unsafe { self.gemm.prepare(&self.device, products, room, scratch, stream, progress) }
    }

    /// Whether the algorithms of products are remembered from run to run. Where they are not, timing them anew would make
    /// one run round differently from the next.
    pub fn remembers(&self) -> bool {
        self.gemm.remembers()
    }

    /// The algorithms of all products that were prepared or have run, in the order of the products' text. Other algorithms
    /// round differently, so whoever wants the same bits again needs the same choices.
    pub fn choices(&self) -> Vec<Choice> {
        self.gemm.choices()
    }

    /// Holds a stream for so long, for tests of what waits for what.
    ///
    /// # Errors
    /// What the driver says.
    pub fn delay(&self, time: Duration, stream: &Stream) -> Result<(), CudaError> {
        if time.is_zero() {
            return Ok(());
        }
        let args = Args::new().long(time.as_nanos() as usize);
        let launch = Launch { kernel: "delay", grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0, args };
        // SAFETY: the kernel touches no memory.
        unsafe { self.launch("delay", &launch, stream) }
    }

    /// The GPU.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Issues one op on a stream. `addresses` are those of the operands, in the order of [`Op::operands`].
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] before anything is issued, or what the driver says.
    ///
    /// # Panics
    /// If there are not as many addresses as operands, or the scratch memory is too small.
    ///
    /// # Safety
    /// [`Op::check`] must accept the op. Until the stream has passed it, every operand's bytes must be memory of this GPU
    /// that nobody else writes, nor reads where the op writes, and initialised where it reads; the scratch memory nobody
    /// else uses. Document borders must ascend from 0 to the number of tokens.
    pub unsafe fn run(&self, op: &Op, addresses: &[u64], scratch: Scratch, stream: &Stream) -> Result<(), CudaError> {
        assert_eq!(addresses.len(), op.operands().len(), "{}: addresses", op.name());
        assert!(scratch.len_bytes >= launch::scratch_bytes(op), "{}: too little scratch memory", op.name());
        for step in launch::steps(op, addresses, scratch.address, self.device.limits())? {
            match step {
                // SAFETY: the arguments are those of the kernel's declaration (the conformance test runs every launch there
                // is); the caller answers for the memory behind them.
                Step::Launch(launch) => unsafe { self.launch(op.name(), &launch, stream) }?,
                Step::Copy { to, from, len_bytes } => {
                    // SAFETY: both are operands of the op, as long as it says; the caller answers for them.
                    unsafe { result::memcpy_dtod_async(to, from, len_bytes as usize, stream.raw()) }
                        .map_err(CudaError::driver(format!("{}: copying", op.name())))?;
                }
                // SAFETY: the caller answers for the operands and the scratch memory.
                Step::Matmul(matmul) => unsafe { self.gemm.run(&matmul, addresses, scratch, stream) }?,
            }
        }
        Ok(())
    }

    /// # Safety
    /// The arguments must be those that the kernel declares, and the memory behind them as [`Runner::run`] says.
    unsafe fn launch(&self, what: &str, launch: &Launch, stream: &Stream) -> Result<(), CudaError> {
        let function = self.modules.function(launch.kernel, launch.shared_bytes)?;
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let mut pointers = launch.args.pointers();
        // SAFETY: passed on; arguments are copied by the call.
        unsafe {
            result::launch_kernel(
                function,
                (gx, gy, gz),
                (bx, by, bz),
                launch.shared_bytes,
                stream.raw(),
                &mut pointers,
            )
        }
        .map_err(|error| CudaError::driver(format!("{what}: launching {}", launch.kernel))(error))
    }
}
