//! Times every op on the GPU at the shapes of a 7B model and prints it beside its bytes and flops:
//! `cargo run --release -p megatrain-cuda --example time_ops [PART OF A NAME]`.
//!
//! Inputs are random; times are medians over launches in a row, between events. Rates count the op's own work
//! ([`megatrain_ops::OpSpec`]), except that attention counts the pairs of its documents. The first row, a copy, is what
//! memory can do on this machine.

use megatrain_base::{Access, DType, RegionId, Tensor};
use megatrain_cuda::{CudaError, Device, DeviceBuffer, Event, Runner, Scratch, Stream, scratch_bytes};
use megatrain_ops::*;

const TOKENS: usize = 32_768;
const DOCUMENT: usize = 4096;
const HIDDEN: usize = 3584;
const INTERMEDIATE: usize = 18_944;
const VOCAB: usize = 152_064;
const LOSS_ROWS: usize = 2048;
const HEADS: u32 = 28;
const KV_HEADS: u32 = 4;
const HEAD_DIM: u32 = 128;
const QKV: usize = (HEADS + 2 * KV_HEADS) as usize * HEAD_DIM as usize;
const REPEATS: usize = 21;

fn main() -> Result<(), CudaError> {
    let only = std::env::args().nth(1).unwrap_or_default();
    let device = Device::open(0)?;
    let runner = Runner::new(&device, None)?;
    let stream = Stream::new(&device)?;
    println!("{} ({} multiprocessors), {TOKENS} tokens, medians of {REPEATS}", device.name(), device.multiprocessors());
    for (name, op) in ops() {
        if !name.contains(&only) {
            continue;
        }
        op.check().unwrap_or_else(|e| panic!("{e}"));
        let us = time(&device, &runner, &stream, &op)?;
        let work = op.work();
        let flops = match &op {
            Op::Attention(_) | Op::AttentionBackward(_) => work.flops * (DOCUMENT + 1) as f64 / (TOKENS + 1) as f64,
            _ => work.flops,
        };
        println!("{name:<34}{us:>10.1} us {:>8.0} GB/s {:>8.1} TFLOP/s", work.bytes / us / 1e3, flops / us / 1e6);
    }
    Ok(())
}

fn ops() -> Vec<(String, Op)> {
    let mut at = Places::default();
    let mut tensor = |dtype, dims: &[usize]| match *dims {
        [n] => at.tensor(dtype, [n]),
        [rows, n] => at.tensor(dtype, [rows, n]),
        _ => unreachable!("vectors and matrices only"),
    };
    let (b, f, i) = (DType::Bf16, DType::F32, DType::I32);
    let (heads, kv_heads, head_dim, eps) = (HEADS, KV_HEADS, HEAD_DIM, 1e-6);
    let x = tensor(b, &[TOKENS, HIDDEN]);
    let y = tensor(b, &[TOKENS, HIDDEN]);
    let z = tensor(b, &[TOKENS, HIDDEN]);
    let weight = tensor(b, &[HIDDEN]);
    let rstd = tensor(f, &[TOKENS]);
    let dweight = tensor(f, &[HIDDEN]);
    let gate_up = tensor(b, &[TOKENS, 2 * INTERMEDIATE]);
    let activation = tensor(b, &[TOKENS, INTERMEDIATE]);
    let (qkv, dqkv) = (tensor(b, &[TOKENS, QKV]), tensor(b, &[TOKENS, QKV]));
    let (bias, dbias) = (tensor(b, &[QKV]), tensor(f, &[QKV]));
    let index = tensor(i, &[TOKENS]);
    let (q_weight, k_weight) = (tensor(b, &[128]), tensor(b, &[128]));
    let (dq_weight, dk_weight) = (tensor(f, &[128]), tensor(f, &[128]));
    let (out, dout) = (tensor(b, &[TOKENS, HIDDEN]), tensor(b, &[TOKENS, HIDDEN]));
    let lse = tensor(f, &[HEADS as usize, TOKENS]);
    let cu_seqlens = tensor(i, &[TOKENS / DOCUMENT + 1]);
    let logits = tensor(f, &[LOSS_ROWS, VOCAB]);
    let dlogits = tensor(b, &[LOSS_ROWS, VOCAB]);
    let (targets, losses, inv_targets) = (tensor(i, &[LOSS_ROWS]), tensor(f, &[LOSS_ROWS]), tensor(f, &[1]));
    let w_up = tensor(b, &[2 * INTERMEDIATE, HIDDEN]);
    let dw_up = tensor(f, &[2 * INTERMEDIATE, HIDDEN]);
    let w32 = tensor(f, &[2 * INTERMEDIATE, HIDDEN]);
    let rope = RopeParams { theta: 1e6, scaling: RopeScaling::Default };
    let scale = 1.0 / (HEAD_DIM as f32).sqrt();
    let product = |a: Tensor, b: Tensor, c: Tensor, transpose_a, transpose_b, accumulate| {
        Op::from(Matmul { a, b, c, transpose_a, transpose_b, accumulate })
    };
    vec![
        ("copy".into(), Cast { x: gate_up, y: gate_up.at(RegionId(99), 0) }.into()),
        ("add".into(), Add { a: x, b: y, out: z }.into()),
        ("cast f32 to bf16".into(), Cast { x: w32, y: w_up }.into()),
        ("rms_norm".into(), RmsNorm { x, weight, y, rstd, eps }.into()),
        (
            "rms_norm_backward".into(),
            RmsNormBackward { dy: y, x, weight, rstd, dx: z, dweight, add_to_dx: true, accumulate: true }.into(),
        ),
        ("swiglu".into(), SwiGlu { gate_up, out: activation }.into()),
        ("swiglu_backward".into(), SwiGluBackward { dout: activation, gate_up }.into()),
        ("bias_add".into(), BiasAdd { x: qkv, bias }.into()),
        ("bias_grad".into(), BiasGrad { dy: dqkv, dbias, accumulate: true }.into()),
        ("rope".into(), Rope { qkv, positions: index, heads, kv_heads, head_dim, rope, inverse: false }.into()),
        ("qk_norm".into(), QkNorm { qkv, q_weight, k_weight, out: dqkv, heads, kv_heads, head_dim, eps }.into()),
        (
            "qk_norm_backward".into(),
            QkNormBackward {
                dout: qkv.at(RegionId(98), 0),
                qkv,
                q_weight,
                k_weight,
                dqkv,
                dq_weight,
                dk_weight,
                heads,
                kv_heads,
                head_dim,
                eps,
                accumulate: true,
            }
            .into(),
        ),
        ("gather_rows".into(), GatherRows { x, index, y }.into()),
        ("cross_entropy".into(), CrossEntropy { logits, targets, inv_targets, dlogits, losses }.into()),
        ("cross_entropy_loss".into(), CrossEntropyLoss { logits, targets, losses }.into()),
        ("attention".into(), Attention { qkv, cu_seqlens, out, lse, heads, kv_heads, head_dim, scale }.into()),
        (
            "attention_backward".into(),
            AttentionBackward { dout, out, qkv, lse, cu_seqlens, dqkv, heads, kv_heads, head_dim, scale }.into(),
        ),
        ("matmul gate_up = x W^T".into(), product(x, w_up, gate_up, false, true, false)),
        ("matmul dx = dy W".into(), product(gate_up, w_up, z, false, false, false)),
        ("matmul dW += dy^T x".into(), product(gate_up, x, dw_up, true, false, true)),
    ]
}

fn time(device: &std::sync::Arc<Device>, runner: &Runner, stream: &Stream, op: &Op) -> Result<f64, CudaError> {
    let mut buffers: Vec<(RegionId, DeviceBuffer)> = Vec::new();
    for (t, access) in op.operands() {
        if buffers.iter().any(|(region, _)| *region == t.span.region) {
            continue;
        }
        let buffer = DeviceBuffer::new(device, t.span.len_bytes)?;
        if access != Access::Write {
            fill(&buffer, &t)?;
        }
        buffers.push((t.span.region, buffer));
    }
    let address = |t: &Tensor| buffers.iter().find(|(region, _)| *region == t.span.region).expect("placed").1.address();
    let addresses: Vec<u64> = op.operands().iter().map(|(t, _)| address(t)).collect();
    let memory = DeviceBuffer::new(device, scratch_bytes(op).max(1))?;
    let scratch = Scratch { address: memory.address(), len_bytes: memory.len_bytes() };
    let events = (0..=REPEATS).map(|_| Event::new(device)).collect::<Result<Vec<_>, _>>()?;
    for repeat in 0..REPEATS + 3 {
        if let Some(event) = repeat.checked_sub(3).map(|i| &events[i]) {
            event.record(stream)?;
        }
        // SAFETY: all operands are buffers of this function, and so is the scratch memory; integers are in range.
        unsafe { runner.run(op, &addresses, scratch, stream) }?;
    }
    events[REPEATS].record(stream)?;
    let mut times = events.windows(2).map(|e| e[1].since_us(&e[0])).collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Random floats in [-1, 1); integers that serve as borders of documents, positions, rows and tokens alike.
fn fill(buffer: &DeviceBuffer, t: &Tensor) -> Result<(), CudaError> {
    let n = t.elems();
    let mut state = u64::from(t.span.region.0) + 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let bytes: Vec<u8> = match t.dtype {
        DType::I32 if n == TOKENS / DOCUMENT + 1 => {
            (0..n).flat_map(|i| ((i * DOCUMENT) as i32).to_ne_bytes()).collect()
        }
        DType::I32 => (0..n).flat_map(|i| ((i * 7919 % DOCUMENT) as i32).to_ne_bytes()).collect(),
        // Truncated to bf16, which is as good as any rounding here.
        DType::Bf16 => (0..n.min(1 << 24)).flat_map(|_| ((uniform().to_bits() >> 16) as u16).to_ne_bytes()).collect(),
        _ => (0..n.min(1 << 24)).flat_map(|_| uniform().to_ne_bytes()).collect(),
    };
    let mut at = 0;
    while at < t.span.len_bytes {
        let len = bytes.len().min((t.span.len_bytes - at) as usize);
        buffer.write(at, &bytes[..len])?;
        at += len as u64;
    }
    Ok(())
}
