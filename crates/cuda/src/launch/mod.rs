//! What an op issues on a GPU: launches with their geometry and arguments, as plain data. Nothing here talks to a driver.
//!
//! Geometry depends on shapes alone, not on the number of multiprocessors, so results do not either.

mod args;
mod attention;
mod elementwise;
mod loss;
mod norm;
mod square_sum;
#[cfg(test)]
mod tests;

pub use args::Args;

use crate::CudaError;
use megatrain_base::DType;
use megatrain_ops::{Matmul, Op};

/// Scratch memory that cuBLASLt may use, in bytes.
pub(crate) const GEMM_SCRATCH_BYTES: u64 = 32 << 20;

/// What a launch must respect on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Dynamic shared memory a block may ask for, in bytes.
    pub shared_bytes: u32,
}

/// One kernel launch.
#[derive(Clone, PartialEq, Debug)]
pub struct Launch {
    /// The kernel's name, as in its source.
    pub kernel: &'static str,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads along x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory a block.
    pub shared_bytes: u32,
    /// Arguments.
    pub args: Args,
}

/// One thing to issue.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// A kernel.
    Launch(Launch),
    /// A copy between operands.
    Copy {
        /// Target address.
        to: u64,
        /// Source address.
        from: u64,
        /// Length in bytes.
        len_bytes: u64,
    },
    /// A product by cuBLASLt.
    Matmul(Matmul),
}

/// The steps of an op, in order. `addresses` are those of the operands in the order of [`Op::operands`].
///
/// # Errors
/// [`CudaError::Unsupported`]: no kernel takes these arguments.
///
/// # Panics
/// If there are not as many addresses as operands.
pub fn steps(op: &Op, addresses: &[u64], scratch: u64, limits: Limits) -> Result<Vec<Step>, CudaError> {
    if op.operands().iter().any(|(t, _)| t.elems() == 0) {
        return Err(CudaError::Unsupported { op: op.name(), why: "an operand has no elements".into() });
    }
    let steps = match op {
        Op::Add(op) => elementwise::add(op, take(addresses)),
        Op::Attention(op) => return attention::forward(op, take(addresses), limits),
        Op::AttentionBackward(op) => return attention::backward(op, take(addresses), scratch, limits),
        Op::BiasAdd(op) => elementwise::bias_add(op, take(addresses)),
        Op::BiasGrad(op) => norm::bias_grad(op, take(addresses), scratch),
        Op::Cast(op) => elementwise::cast(op, take(addresses)),
        Op::CrossEntropy(op) => loss::cross_entropy(op, take(addresses)),
        Op::CrossEntropyLoss(op) => loss::cross_entropy_loss(op, take(addresses)),
        Op::GatherRows(op) => elementwise::gather_rows(op, take(addresses)),
        Op::Matmul(op) => vec![Step::Matmul(*op)],
        Op::QkNorm(op) => norm::qk_norm(op, take(addresses)),
        Op::QkNormBackward(op) => return norm::qk_norm_backward(op, take(addresses), scratch, limits),
        Op::RmsNorm(op) => norm::rms_norm(op, take(addresses)),
        Op::RmsNormBackward(op) => return norm::rms_norm_backward(op, take(addresses), scratch, limits),
        Op::Rope(op) => return elementwise::rope(op, take(addresses)),
        Op::SquareSum(op) => square_sum::square_sum(op, take(addresses), scratch),
        Op::SwiGlu(op) => elementwise::swiglu(op, take(addresses)),
        Op::SwiGluBackward(op) => elementwise::swiglu_backward(op, take(addresses)),
    };
    Ok(steps)
}

/// Scratch memory that an op needs while it runs, in bytes.
pub fn scratch_bytes(op: &Op) -> u64 {
    match op {
        Op::AttentionBackward(op) => attention::backward_scratch_bytes(op),
        Op::BiasGrad(op) => Parts::of(op.dy.shape.dim(0)).scratch_bytes(op.dbias.elems()),
        Op::Matmul(_) => GEMM_SCRATCH_BYTES,
        Op::QkNormBackward(op) => Parts::of(op.qkv.shape.dim(0)).scratch_bytes(2 * op.head_dim as usize),
        Op::RmsNormBackward(op) => Parts::of(op.x.shape.dim(0)).scratch_bytes(op.dweight.elems()),
        Op::SquareSum(op) => square_sum::scratch_bytes(op),
        _ => 0,
    }
}

/// The operands' addresses as an array.
fn take<const N: usize>(addresses: &[u64]) -> [u64; N] {
    addresses.try_into().unwrap_or_else(|_| panic!("{} addresses for {N} operands", addresses.len()))
}

/// Rows cut into parts whose sums are taken apart and then added in order: 16 rows a part, more where that would make over
/// 528 parts, four for each multiprocessor of the largest GPU meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parts {
    count: usize,
    rows: usize,
}

impl Parts {
    fn of(rows: usize) -> Parts {
        let rows_per_part = rows.div_ceil(rows.div_ceil(16).clamp(1, 528));
        Parts { count: rows.div_ceil(rows_per_part), rows: rows_per_part }
    }

    fn scratch_bytes(&self, columns: usize) -> u64 {
        self.count as u64 * columns as u64 * 4
    }
}

/// Adds up parts `[count, stride]` f32 at `parts`, columns `first..first + n`, into `out`.
fn sum_parts(parts: u64, count: usize, stride: usize, first: usize, out: u64, n: usize, accumulate: bool) -> Step {
    Step::Launch(Launch {
        kernel: "sum_parts",
        grid: [blocks(n, 32), 1, 1],
        block: [32, 16, 1],
        shared_bytes: 0,
        args: Args::new().pointer(parts).pointer(out).long(count).long(stride).long(first).long(n).flag(accumulate),
    })
}

/// Blocks for `n` items, `per_block` each; launches are grid-stride where this is cut off.
fn blocks(n: usize, per_block: usize) -> u32 {
    n.div_ceil(per_block).min(i32::MAX as usize) as u32
}

/// Blocks along y for this many rows: kernels stride where they are cut off.
fn row_blocks(rows: usize) -> u32 {
    rows.min(65_535) as u32
}

/// The kernel of a dtype.
fn by_dtype(dtype: DType, f32: &'static str, bf16: &'static str) -> &'static str {
    if dtype == DType::Bf16 { bf16 } else { f32 }
}
