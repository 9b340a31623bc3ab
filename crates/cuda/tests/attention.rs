//! Attention where tiles end: lengths around tile borders, borders of documents off tiles, every padded head dimension,
//! what falls back to the plain kernels; and documents that must not feel each other.

mod common;

use common::{Gpu, Placed};
use megatrain_base::{DType, Element, bf16};
use megatrain_ops::harness::{self, Memory};
use megatrain_ops::{Attention, AttentionBackward, Case, Fill, Op, Places};

/// Forward and backward over documents of these lengths.
fn cases(dtype: DType, (heads, kv_heads, head_dim): (u32, u32, u32), lengths: &[i32], scale: f32) -> [Case; 2] {
    let mut borders = vec![0];
    lengths.iter().for_each(|len| borders.push(borders[borders.len() - 1] + len));
    let tokens = borders[borders.len() - 1] as usize;
    let mut at = Places::default();
    let width = (heads + 2 * kv_heads) as usize * head_dim as usize;
    let forward = Attention {
        qkv: at.tensor(dtype, [tokens, width]),
        cu_seqlens: at.tensor(DType::I32, [borders.len()]),
        out: at.tensor(dtype, [tokens, (heads * head_dim) as usize]),
        lse: at.tensor(DType::F32, [heads as usize, tokens]),
        heads,
        kv_heads,
        head_dim,
        scale,
    };
    let backward = AttentionBackward {
        dout: at.tensor(dtype, forward.out.shape),
        out: forward.out,
        qkv: forward.qkv,
        lse: forward.lse,
        cu_seqlens: forward.cu_seqlens,
        dqkv: at.tensor(dtype, forward.qkv.shape),
        heads,
        kv_heads,
        head_dim,
        scale,
    };
    let name = format!("{dtype} heads {heads}/{kv_heads} of {head_dim}, documents {lengths:?}");
    let made = || Fill::From(Box::new(forward.into()));
    [
        Case::new(name.clone(), forward).fill(forward.cu_seqlens, Fill::Ints(borders.clone())),
        Case::new(name, backward)
            .fill(forward.cu_seqlens, Fill::Ints(borders))
            .fill(backward.out, made())
            .fill(backward.lse, made()),
    ]
}

#[test]
fn tile_borders_documents_and_head_dimensions_conform() {
    let Some(gpu) = Gpu::open() else { return };
    let (runner, mut placed) = (gpu.runner(), Placed::new(&gpu));
    let b = DType::Bf16;
    let mut all = Vec::new();
    for head_dim in [64, 72, 80, 96, 128, 192, 256] {
        for lengths in [vec![1], vec![63, 2, 65], vec![129], vec![192, 1, 0, 1, 70]] {
            all.extend(cases(b, (2, 1, head_dim), &lengths, 1.0 / (head_dim as f32).sqrt()));
        }
    }
    all.extend(cases(b, (4, 4, 64), &[600], 0.125));
    all.extend(cases(b, (8, 2, 128), &[1, 255, 128, 3, 64], 0.088));
    all.extend(cases(b, (2, 1, 128), &[1; 300], 0.088));
    // Not for tensor cores: no positive scale, too wide a head; and f32 at a width of its own.
    for scale in [-0.1, 0.0] {
        all.extend(cases(b, (2, 1, 64), &[70, 10], scale));
    }
    all.extend(cases(b, (2, 1, 512), &[40], 0.05));
    all.extend(cases(DType::F32, (2, 1, 256), &[100, 29], 0.06));
    let mut worst = 0.0f64;
    for case in &all {
        let report =
            harness::check(case, |op, memory| placed.run(&runner, op, memory)).unwrap_or_else(|e| panic!("{e}"));
        worst = report.outputs.iter().map(|o| o.worst_share).fold(worst, f64::max);
    }
    println!("attention: {} further cases conform, largest error {worst:.2} of its bound", all.len());
}

#[test]
fn a_document_gives_the_same_bits_whatever_the_others_hold() {
    let Some(gpu) = Gpu::open() else { return };
    let (runner, mut placed) = (gpu.runner(), Placed::new(&gpu));
    let lengths = [70, 45, 100];
    let changed = 70..115;
    for case in cases(DType::Bf16, (4, 2, 64), &lengths, 0.125) {
        let mut run = |change: bool| -> Vec<Vec<u8>> {
            let mut outputs = Vec::new();
            let result = harness::check(&case, |op, memory| {
                if change {
                    alter_rows(op, memory, changed.clone());
                }
                placed.run(&runner, op, memory)?;
                let (t, _) = op.operands().into_iter().find(|(_, access)| access.writes()).unwrap();
                let row = t.span.len_bytes as usize / t.shape.dim(0);
                outputs = memory.bytes(t.span.region).chunks(row).map(<[u8]>::to_vec).collect();
                Ok(())
            });
            assert_eq!(result.is_ok(), !change, "{}: {result:?}", case.name);
            outputs
        };
        let (before, after) = (run(false), run(true));
        for (token, (a, b)) in before.iter().zip(&after).enumerate() {
            assert_eq!(a == b, !changed.contains(&token), "{} token {token}", case.op.name());
        }
    }
}

/// Doubles these tokens' rows of the first operand, the queries, keys and values or the output's gradient.
fn alter_rows(op: &Op, memory: &mut Memory, tokens: std::ops::Range<usize>) {
    let (t, _) = op.operands()[0];
    let row = t.span.len_bytes as usize / t.shape.dim(0);
    for element in memory.bytes_mut(t.span.region)[tokens.start * row..tokens.end * row].chunks_exact_mut(2) {
        let x = Element::to_f32(bf16::from_bits(u16::from_ne_bytes([element[0], element[1]])));
        element.copy_from_slice(&<bf16 as Element>::from_f32(2.0 * x + 0.25).to_bits().to_ne_bytes());
    }
}
