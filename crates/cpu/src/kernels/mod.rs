//! The CPU kernels: one file per op, chosen by [`run`]; an op without a kernel here runs by its reference twin.
//!
//! Kernels use rayon's current pool. Results do not depend on its size: where work is cut by the number of threads, the
//! cut changes no order of additions (`par.rs`, `matmul_amx.rs`). Vector widths are chosen at run time (`simd.rs`) and change
//! no bits either, except in matrix products and the attention made of them, where AMX tiles and plain vectors add in
//! different orders.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx_pack;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod matmul_amx;

mod add;
mod attention;
mod attention_backward;
mod bias;
mod block;
mod cast;
mod cross_entropy;
mod factor;
mod gather_rows;
mod math;
mod matmul;
mod par;
mod qk_norm;
mod rms_norm;
mod rope;
mod scratch;
mod simd;
mod square_sum;
mod swiglu;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use amx_pack::Packable;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use megatrain_base::Element as Packable;

use megatrain_base::Operands;
use megatrain_ops::Op;

/// Calls `$call` with `$t` standing for the float type that a tensor has.
macro_rules! by_float {
    ($tensor:expr, $t:ident => $call:expr) => {
        match $tensor.dtype {
            megatrain_base::DType::F32 => {
                type $t = f32;
                $call
            }
            megatrain_base::DType::Bf16 => {
                type $t = megatrain_base::bf16;
                $call
            }
            other => panic!("{other} passed the op's check, which admits f32 and bf16 only"),
        }
    };
}
use by_float;

/// Bytes of scratch memory that the kernels hold, for accounts of a process's memory. It grows to what the largest ops
/// need and stays: about 5 MiB for all threads and 3 MiB a thread at the shapes of small models.
pub fn scratch_bytes() -> usize {
    scratch::bytes()
}

/// Executes one op.
///
/// # Panics
/// If the op does not pass its own [`Op::check`], or an index or target points outside its table: whoever builds
/// programs and batches has to refuse those.
pub fn run(op: &Op, operands: &Operands) {
    #[allow(unreachable_patterns, reason = "reached by ops added to the list without a kernel here")]
    match op {
        Op::Add(op) => add::run(op, operands),
        Op::Attention(op) => attention::run(op, operands),
        Op::AttentionBackward(op) => attention_backward::run(op, operands),
        Op::BiasAdd(op) => bias::add(op, operands),
        Op::BiasGrad(op) => bias::grad(op, operands),
        Op::Cast(op) => cast::run(op, operands),
        Op::CrossEntropy(op) => cross_entropy::run(op, operands),
        Op::CrossEntropyLoss(op) => cross_entropy::loss(op, operands),
        Op::GatherRows(op) => gather_rows::run(op, operands),
        Op::Matmul(op) => matmul::run(op, operands),
        Op::QkNorm(op) => qk_norm::forward(op, operands),
        Op::QkNormBackward(op) => qk_norm::backward(op, operands),
        Op::RmsNorm(op) => rms_norm::forward(op, operands),
        Op::RmsNormBackward(op) => rms_norm::backward(op, operands),
        Op::Rope(op) => rope::run(op, operands),
        Op::SquareSum(op) => square_sum::run(op, operands),
        Op::SwiGlu(op) => swiglu::forward(op, operands),
        Op::SwiGluBackward(op) => swiglu::backward(op, operands),
        other => megatrain_ops::run_on(other, operands),
    }
}

/// Whether this machine multiplies bf16 matrices in hardware (AMX), several times faster than f32.
pub fn bf16_is_fast() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    return amx::available();
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}
