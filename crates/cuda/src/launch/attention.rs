//! Launches of attention: tensor-core kernels by padded head dimension, plain ones for the rest.

use super::{Args, Launch, Limits, Step, blocks, by_dtype};
use crate::CudaError;
use megatrain_base::DType;
use megatrain_ops::{Attention, AttentionBackward, OpArgs};

/// Elements a head that the plain kernels take.
const MAX_PLAIN_HEAD_DIM: u32 = 512;

/// Tile sizes of the tensor-core kernels of one padded head dimension, as instantiated in the sources.
struct Tiles {
    /// Elements a head in shared memory.
    padded: u32,
    forward: &'static str,
    /// Query tokens a block, key tokens a tile.
    forward_tile: (u32, u32),
    /// The kernels for dK and dV, each with its share or both at once.
    dkdv: &'static [&'static str],
    /// Key tokens a block, query tokens a tile.
    dkdv_tile: (u32, u32),
    dq: &'static str,
    /// Query tokens a block, key tokens a tile.
    dq_tile: (u32, u32),
}

const TILES: [Tiles; 5] = [
    Tiles {
        padded: 64,
        forward: "attention_forward_bf16_64",
        forward_tile: (128, 64),
        dkdv: &["attention_dkdv_bf16_64"],
        dkdv_tile: (64, 64),
        dq: "attention_dq_bf16_64",
        dq_tile: (128, 32),
    },
    Tiles {
        padded: 80,
        forward: "attention_forward_bf16_80",
        forward_tile: (128, 64),
        dkdv: &["attention_dkdv_bf16_80"],
        dkdv_tile: (64, 64),
        dq: "attention_dq_bf16_80",
        dq_tile: (128, 32),
    },
    Tiles {
        padded: 96,
        forward: "attention_forward_bf16_96",
        forward_tile: (128, 64),
        dkdv: &["attention_dkdv_bf16_96"],
        dkdv_tile: (64, 64),
        dq: "attention_dq_bf16_96",
        dq_tile: (128, 32),
    },
    Tiles {
        padded: 128,
        forward: "attention_forward_bf16_128",
        forward_tile: (128, 64),
        dkdv: &["attention_dkdv_bf16_128"],
        dkdv_tile: (64, 64),
        dq: "attention_dq_bf16_128",
        dq_tile: (128, 32),
    },
    Tiles {
        padded: 256,
        forward: "attention_forward_bf16_256",
        forward_tile: (64, 32),
        dkdv: &["attention_dv_bf16_256", "attention_dk_bf16_256"],
        dkdv_tile: (64, 32),
        dq: "attention_dq_bf16_256",
        dq_tile: (64, 32),
    },
];

/// Threads of a block of the tensor-core kernels.
const THREADS: u32 = 128;

impl Tiles {
    /// Bytes of a tile of this many rows, each padded against bank conflicts.
    fn rows_bytes(&self, rows: u32) -> u32 {
        rows * (self.padded + 8) * 2
    }
    /// One tile of queries, keys and values each, and where the rows' documents start.
    fn forward_shared_bytes(&self) -> u32 {
        let (queries, keys) = self.forward_tile;
        self.rows_bytes(queries + 2 * keys) + 4 * queries
    }
    /// Keys, values, and two stages of queries and output gradients with their log sums and deltas.
    fn dkdv_shared_bytes(&self) -> u32 {
        let (keys, queries) = self.dkdv_tile;
        self.rows_bytes(2 * keys + 4 * queries) + 4 * 4 * queries
    }
    /// Queries, output gradients, two stages of keys and values, and where the rows' documents start.
    fn dq_shared_bytes(&self) -> u32 {
        let (queries, keys) = self.dq_tile;
        self.rows_bytes(2 * queries + 4 * keys) + 4 * queries
    }
}

/// The tensor-core kernels that take these arguments and fit the GPU.
fn tiles(dtype: DType, head_dim: u32, scale: f32, needs: fn(&Tiles) -> u32, limits: Limits) -> Option<&'static Tiles> {
    let usable = dtype == DType::Bf16 && head_dim.is_multiple_of(8) && scale > 0.0;
    let tiles = TILES.iter().find(|t| usable && t.padded >= head_dim)?;
    (needs(tiles) <= limits.shared_bytes).then_some(tiles)
}

fn plain_only(op: &'static str, head_dim: u32) -> Result<(), CudaError> {
    if head_dim <= MAX_PLAIN_HEAD_DIM {
        return Ok(());
    }
    let why = format!("head_dim {head_dim} is over {MAX_PLAIN_HEAD_DIM}, the most its kernels take");
    Err(CudaError::Unsupported { op, why })
}

fn launch(kernel: &'static str, grid: [u32; 2], threads: u32, shared_bytes: u32, args: Args) -> Step {
    let [x, y] = grid;
    Step::Launch(Launch { kernel, grid: [x, y, 1], block: [threads, 1, 1], shared_bytes, args })
}

pub(super) fn forward(op: &Attention, addresses: [u64; 4], limits: Limits) -> Result<Vec<Step>, CudaError> {
    let tokens = op.qkv.shape.dim(0);
    let args = addresses
        .into_iter()
        .fold(Args::new(), Args::pointer)
        .int(op.cu_seqlens.elems() as u32 - 1)
        .long(tokens)
        .int(op.heads)
        .int(op.kv_heads)
        .int(op.head_dim)
        .float(op.scale);
    if let Some(t) = tiles(op.qkv.dtype, op.head_dim, op.scale, Tiles::forward_shared_bytes, limits) {
        let grid = [blocks(tokens, t.forward_tile.0 as usize), op.heads];
        return Ok(vec![launch(t.forward, grid, THREADS, t.forward_shared_bytes(), args)]);
    }
    plain_only(Attention::NAME, op.head_dim)?;
    let kernel = by_dtype(op.qkv.dtype, "attention_plain_forward_f32", "attention_plain_forward_bf16");
    Ok(vec![launch(kernel, [blocks(tokens * op.heads as usize, 8), 1], 256, 0, args)])
}

/// The rows' `dout . out`.
pub(super) fn backward_scratch_bytes(op: &AttentionBackward) -> u64 {
    op.lse.span.len_bytes
}

pub(super) fn backward(
    op: &AttentionBackward,
    [dout, out, qkv, lse, borders, dqkv]: [u64; 6],
    delta: u64,
    limits: Limits,
) -> Result<Vec<Step>, CudaError> {
    let tokens = op.qkv.shape.dim(0);
    let all_heads = tokens * op.heads as usize;
    let delta_args = Args::new().pointer(dout).pointer(out).pointer(delta).long(tokens).int(op.heads).int(op.head_dim);
    let delta_kernel = by_dtype(op.qkv.dtype, "attention_delta_f32", "attention_delta_bf16");
    let mut steps = vec![launch(delta_kernel, [blocks(all_heads, 8), 1], 256, 0, delta_args)];
    let args = [dout, qkv, lse, delta, borders, dqkv]
        .into_iter()
        .fold(Args::new(), Args::pointer)
        .int(op.cu_seqlens.elems() as u32 - 1)
        .long(tokens)
        .int(op.heads)
        .int(op.kv_heads)
        .int(op.head_dim)
        .float(op.scale);
    let needs = |t: &Tiles| t.dkdv_shared_bytes().max(t.dq_shared_bytes());
    if let Some(t) = tiles(op.qkv.dtype, op.head_dim, op.scale, needs, limits) {
        let keys = [blocks(tokens, t.dkdv_tile.0 as usize), op.kv_heads];
        for kernel in t.dkdv {
            steps.push(launch(kernel, keys, THREADS, t.dkdv_shared_bytes(), args.clone()));
        }
        let queries = [blocks(tokens, t.dq_tile.0 as usize), op.heads];
        steps.push(launch(t.dq, queries, THREADS, t.dq_shared_bytes(), args));
        return Ok(steps);
    }
    plain_only(AttentionBackward::NAME, op.head_dim)?;
    let dkdv = by_dtype(op.qkv.dtype, "attention_plain_dkdv_f32", "attention_plain_dkdv_bf16");
    steps.push(launch(dkdv, [blocks(tokens * op.kv_heads as usize, 8), 1], 256, 0, args.clone()));
    let dq = by_dtype(op.qkv.dtype, "attention_plain_dq_f32", "attention_plain_dq_bf16");
    steps.push(launch(dq, [blocks(all_heads, 8), 1], 256, 0, args));
    Ok(steps)
}
