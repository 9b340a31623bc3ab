//! [`Problem`]: a product described to cuBLASLt, the algorithms it offers, and the call that runs one.
//!
//! cuBLASLt is column-major; a row-major `c = op(a) op(b)` is its `c^T = op(b)^T op(a)^T` on the same bytes, so its left
//! factor is our `b`. In-place split-K is excluded: its sums come in no fixed order.

use super::key::Key;
use crate::cublaslt::{self as lt, Algorithm, CublasLt, Heuristic, Owned, check};
use crate::launch::GEMM_SCRATCH_BYTES;
use crate::{CudaError, Scratch, Stream};
use megatrain_base::DType;
use megatrain_ops::{Matmul, OpArgs};
use std::ffi::c_void;

/// Most algorithms that are asked for.
const MAX_CANDIDATES: usize = 16;

/// Descriptors of a product.
pub(super) struct Problem {
    key: Key,
    desc: Owned,
    /// Of cuBLASLt's left factor (our b), its right one (our a), and the result.
    layouts: [Owned; 3],
}

// SAFETY: descriptors are plain memory of cuBLASLt's, bound to no thread.
unsafe impl Send for Problem {}

impl Problem {
    /// # Errors
    /// [`CudaError::CublasLt`].
    pub(super) fn new(lt: &CublasLt, key: &Key) -> Result<Problem, CudaError> {
        let f = &lt.functions;
        // SAFETY: writes the new descriptor.
        let desc = Owned::new(c"describing a product", f.desc_destroy, |d| unsafe {
            (f.desc_create)(d, lt::COMPUTE_32F, lt::CUDA_R_32F)
        })?;
        for (attribute, transposed) in [(lt::DESC_TRANSA, key.transposes[1]), (lt::DESC_TRANSB, key.transposes[0])] {
            let value = i32::from(transposed);
            // SAFETY: the attribute is a `cublasOperation_t`, an int.
            let status = unsafe { (f.desc_set)(desc.raw, attribute, (&raw const value).cast(), size_of::<i32>()) };
            check("describing a product", status)?;
        }
        let (shapes, dtypes) = (key.shapes(), key.dtypes());
        let layout = |i: usize| {
            let [rows, columns] = shapes[i];
            let dtype = if dtypes[i] == DType::Bf16 { lt::CUDA_R_16BF } else { lt::CUDA_R_32F };
            // SAFETY: writes the new descriptor. Row-major `rows x columns` is column-major `columns x rows`.
            Owned::new(c"describing a matrix", f.layout_destroy, |d| unsafe {
                (f.layout_create)(d, dtype, columns, rows, columns as i64)
            })
        };
        Ok(Problem { key: *key, desc, layouts: [layout(1)?, layout(0)?, layout(2)?] })
    }

    /// Algorithms for these shapes and alignments within the scratch memory, at least one, best first by the heuristic.
    ///
    /// # Errors
    /// [`CudaError::CublasLt`]; [`CudaError::Unsupported`] if there is none.
    pub(super) fn candidates(&self, lt: &CublasLt) -> Result<Vec<Algorithm>, CudaError> {
        let f = &lt.functions;
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
        let [a, b, c] = self.key.alignments;
        let alignments = [b, a, c, c].into_iter().enumerate().map(|(i, v)| (lt::PREF_MIN_ALIGNMENT_A + i as i32, v));
        for (attribute, value) in alignments.chain([(lt::PREF_REDUCTION_SCHEME_MASK, lt::REDUCTION_COMPUTE_TYPE)]) {
            // SAFETY: the attribute is a `uint32_t`.
            let status =
                unsafe { (f.preference_set)(preference.raw, attribute, (&raw const value).cast(), size_of::<u32>()) };
            check("describing preferences", status)?;
        }
        let [left, right, result] = self.layouts.each_ref().map(|layout| layout.raw);
        let (mut found, mut offers) = (0, [Heuristic::EMPTY; MAX_CANDIDATES]);
        // SAFETY: all descriptors are alive; at most as many results are written as there is room for.
        let status = unsafe {
            (f.heuristic)(
                lt.handle,
                self.desc.raw,
                left,
                right,
                result,
                result,
                preference.raw,
                MAX_CANDIDATES as i32,
                offers.as_mut_ptr(),
                &mut found,
            )
        };
        check(&format!("choosing an algorithm for the product {}", self.key), status)?;
        let offers = &offers[..(found.max(0) as usize).min(MAX_CANDIDATES)];
        let usable = |offer: &&Heuristic| {
            offer.state == 0
                && offer.workspace_bytes as u64 <= GEMM_SCRATCH_BYTES
                && sums_in_fixed_order(lt, &offer.algorithm)
        };
        let algorithms: Vec<Algorithm> = offers.iter().filter(usable).map(|offer| offer.algorithm).collect();
        if algorithms.is_empty() {
            let why = format!("cuBLASLt has no algorithm for the product {}", self.key);
            return Err(CudaError::Unsupported { op: Matmul::NAME, why });
        }
        Ok(algorithms)
    }

    /// Whether an algorithm from elsewhere can run this product here, by cuBLASLt's own check.
    pub(super) fn accepts(&self, lt: &CublasLt, algorithm: &Algorithm) -> bool {
        let [left, right, result] = self.layouts.each_ref().map(|layout| layout.raw);
        // The check is said to report sizes; whether it sets the state is not, so that must only not be a failure.
        let mut report = Heuristic::EMPTY;
        report.state = 0;
        // SAFETY: all descriptors are alive; the algorithm is a plain value, made for looking at; the report is written.
        let status = unsafe {
            (lt.functions.algo_check)(lt.handle, self.desc.raw, left, right, result, result, algorithm, &mut report)
        };
        status == 0
            && report.state == 0
            && report.workspace_bytes as u64 <= GEMM_SCRATCH_BYTES
            && sums_in_fixed_order(lt, algorithm)
    }

    /// Issues the product; returns cuBLASLt's status, 0 for success.
    ///
    /// # Safety
    /// `algorithm` must be one of [`Problem::candidates`] or accepted by [`Problem::accepts`]. `addresses` must be those of
    /// a, b and c, aligned as the key says; they and the scratch memory must satisfy what [`crate::Runner::run`] asks.
    pub(super) unsafe fn launch(
        &self,
        lt: &CublasLt,
        algorithm: &Algorithm,
        addresses: &[u64],
        scratch: Scratch,
        stream: &Stream,
    ) -> i32 {
        let pointer = |i: usize| addresses[i] as *mut c_void;
        let (alpha, beta) = (1.0f32, if self.key.accumulate { 1.0f32 } else { 0.0 });
        let [left, right, result] = self.layouts.each_ref().map(|layout| layout.raw);
        // SAFETY: descriptors and algorithm were made for these shapes and alignments; alpha and beta are read before the
        // call returns; the caller answers for the memory.
        unsafe {
            (lt.functions.matmul)(
                lt.handle,
                self.desc.raw,
                &alpha,
                pointer(1),
                left,
                pointer(0),
                right,
                &beta,
                pointer(2),
                result,
                pointer(2),
                result,
                algorithm,
                scratch.address as *mut c_void,
                GEMM_SCRATCH_BYTES as usize,
                stream.raw(),
            )
        }
    }
}

/// Whether the algorithm splits no sum, or adds the parts up in a fixed order in f32. Where the library does not tell, the
/// preferences it was asked with have to do.
fn sums_in_fixed_order(lt: &CublasLt, algorithm: &Algorithm) -> bool {
    let (mut scheme, mut written) = (0u32, 0usize);
    // SAFETY: the attribute is a `uint32_t`; the library writes it and its length.
    let status = unsafe {
        (lt.functions.algo_config_get)(
            algorithm,
            lt::CONFIG_REDUCTION_SCHEME,
            (&raw mut scheme).cast(),
            size_of::<u32>(),
            &mut written,
        )
    };
    status != 0 || [lt::REDUCTION_NONE, lt::REDUCTION_COMPUTE_TYPE].contains(&scheme)
}
