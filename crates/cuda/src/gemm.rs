//! Matrix products by cuBLASLt: f32 throughout for f32 factors (no TF32), f32 accumulation for bf16 ones.
//!
//! cuBLASLt is column-major; a row-major `c = op(a) op(b)` is its `c^T = op(b)^T op(a)^T` on the same bytes, so its left
//! factor is our `b`. The algorithm is the heuristic's first choice, asked for once a shape. In-place split-K is excluded:
//! its sums come in no fixed order.

use crate::cublaslt::{self as lt, Functions, Heuristic, Owned, check};
use crate::launch::GEMM_SCRATCH_BYTES;
use crate::{CudaError, Device, Scratch, Stream};
use megatrain_base::{DType, Tensor};
use megatrain_ops::{Matmul, OpArgs};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

/// What an algorithm is chosen by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    sizes: (usize, usize, usize),
    transposes: (bool, bool),
    dtypes: (DType, DType),
    accumulate: bool,
    /// Alignment of a, b and c in bytes, at most 256.
    alignments: [u32; 3],
}

impl Key {
    fn new(op: &Matmul, addresses: &[u64]) -> Key {
        Key {
            sizes: op.sizes(),
            transposes: (op.transpose_a, op.transpose_b),
            dtypes: (op.a.dtype, op.c.dtype),
            accumulate: op.accumulate,
            alignments: std::array::from_fn(|i| 1 << addresses[i].trailing_zeros().min(8)),
        }
    }
}

/// A product ready to run.
struct Plan {
    desc: Owned,
    /// Of cuBLASLt's left factor (our b), its right one (our a), and the result.
    layouts: [Owned; 3],
    algorithm: lt::Algorithm,
}

// SAFETY: descriptors are plain memory of cuBLASLt's, bound to no thread.
unsafe impl Send for Plan {}

/// cuBLASLt on one GPU, with the products it has planned.
pub(crate) struct Gemm {
    functions: Functions,
    handle: lt::Handle,
    plans: Mutex<HashMap<Key, Plan>>,
}

// SAFETY: NVIDIA documents cuBLASLt's handle as usable from several threads.
unsafe impl Send for Gemm {}
// SAFETY: as above; the plans are behind a lock.
unsafe impl Sync for Gemm {}

impl std::fmt::Debug for Gemm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gemm").finish_non_exhaustive()
    }
}

impl Gemm {
    /// # Errors
    /// [`CudaError::NoCublasLt`], [`CudaError::CublasLt`].
    pub(crate) fn new(device: &Device) -> Result<Gemm, CudaError> {
        let functions = lt::load()?;
        device.make_current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes the handle; a context is current.
        check("starting cuBLASLt", unsafe { (functions.create)(&mut handle) })?;
        Ok(Gemm { functions, handle, plans: Mutex::new(HashMap::new()) })
    }

    /// Issues a product. `addresses` are those of a, b and c.
    ///
    /// # Errors
    /// [`CudaError::CublasLt`], [`CudaError::Unsupported`].
    ///
    /// # Safety
    /// As for [`crate::Runner::run`].
    pub(crate) unsafe fn run(
        &self,
        op: &Matmul,
        addresses: &[u64],
        scratch: Scratch,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let key = Key::new(op, addresses);
        let mut plans = self.plans.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let plan = match plans.get(&key) {
            Some(plan) => plan,
            None => {
                let plan = self.plan(op, &key)?;
                plans.entry(key).or_insert(plan)
            }
        };
        let pointer = |i: usize| addresses[i] as *mut c_void;
        let (alpha, beta) = (1.0f32, if op.accumulate { 1.0f32 } else { 0.0 });
        let [left, right, result] = &plan.layouts;
        // SAFETY: descriptors and algorithm were made for these shapes and alignments; the caller answers for the memory.
        let status = unsafe {
            (self.functions.matmul)(
                self.handle,
                plan.desc.raw,
                &alpha,
                pointer(1),
                left.raw,
                pointer(0),
                right.raw,
                &beta,
                pointer(2),
                result.raw,
                pointer(2),
                result.raw,
                &plan.algorithm,
                scratch.address as *mut c_void,
                GEMM_SCRATCH_BYTES as usize,
                stream.raw(),
            )
        };
        check(&describe(op), status)
    }

    fn plan(&self, op: &Matmul, key: &Key) -> Result<Plan, CudaError> {
        let f = &self.functions;
        // SAFETY: writes the new descriptor.
        let desc = Owned::new(c"describing a product", f.desc_destroy, |d| unsafe {
            (f.desc_create)(d, lt::COMPUTE_32F, lt::CUDA_R_32F)
        })?;
        for (attribute, transposed) in [(lt::DESC_TRANSA, op.transpose_b), (lt::DESC_TRANSB, op.transpose_a)] {
            let value = i32::from(transposed);
            // SAFETY: the attribute is a `cublasOperation_t`, an int.
            let status = unsafe { (f.desc_set)(desc.raw, attribute, (&raw const value).cast(), size_of::<i32>()) };
            check("describing a product", status)?;
        }
        let layout = |t: &Tensor| {
            let dtype = if t.dtype == DType::Bf16 { lt::CUDA_R_16BF } else { lt::CUDA_R_32F };
            let (rows, columns) = (t.shape.dim(0) as u64, t.shape.dim(1) as u64);
            // SAFETY: writes the new descriptor. Row-major `rows x columns` is column-major `columns x rows`.
            Owned::new(c"describing a matrix", f.layout_destroy, |d| unsafe {
                (f.layout_create)(d, dtype, columns, rows, columns as i64)
            })
        };
        let layouts = [layout(&op.b)?, layout(&op.a)?, layout(&op.c)?];
        // SAFETY: writes the new descriptor.
        let preference =
            Owned::new(c"describing preferences", f.preference_destroy, |d| unsafe { (f.preference_create)(d) })?;
        let workspace = GEMM_SCRATCH_BYTES;
        // SAFETY: the attribute is a `size_t`, eight bytes on every platform of CUDA 13.
        let status = unsafe {
            (f.preference_set)(
                preference.raw,
                lt::PREF_MAX_WORKSPACE_BYTES,
                (&raw const workspace).cast(),
                size_of::<u64>(),
            )
        };
        check("describing preferences", status)?;
        let [a, b, c] = key.alignments;
        let alignments = [b, a, c, c].into_iter().enumerate().map(|(i, v)| (lt::PREF_MIN_ALIGNMENT_A + i as i32, v));
        for (attribute, value) in alignments.chain([(lt::PREF_REDUCTION_SCHEME_MASK, lt::REDUCTION_COMPUTE_TYPE)]) {
            // SAFETY: the attribute is a `uint32_t`.
            let status =
                unsafe { (f.preference_set)(preference.raw, attribute, (&raw const value).cast(), size_of::<u32>()) };
            check("describing preferences", status)?;
        }
        let [left, right, result] = &layouts;
        let (mut found, mut best) = (0, Heuristic::EMPTY);
        // SAFETY: all descriptors are alive; at most one result is written.
        let status = unsafe {
            (f.heuristic)(
                self.handle,
                desc.raw,
                left.raw,
                right.raw,
                result.raw,
                result.raw,
                preference.raw,
                1,
                &mut best,
                &mut found,
            )
        };
        check(&format!("choosing an algorithm for {}", describe(op)), status)?;
        if found < 1 || best.state != 0 || best.workspace_bytes as u64 > GEMM_SCRATCH_BYTES {
            return Err(CudaError::Unsupported { op: Matmul::NAME, why: format!("no algorithm for {}", describe(op)) });
        }
        Ok(Plan { desc, layouts, algorithm: best.algorithm })
    }
}

impl Drop for Gemm {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

fn describe(op: &Matmul) -> String {
    let (m, n, k) = op.sizes();
    format!("the product m={m} n={n} k={k} of {} into {}", op.a.dtype, op.c.dtype)
}
