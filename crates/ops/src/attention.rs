//! Causal grouped-query attention over packed documents, forward and backward.
//!
//! For query head `h` with key/value head `g = h / (heads / kv_heads)`, token `i` of a document that starts at `s`:
//! `o_i = sum_{j = s..=i} softmax_j(scale * q_i . k_j) v_j`. Documents never see each other.

use crate::check::Check;
use crate::{Case, Fill, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::{DType, Span, Tensor};

op! {
    /// Attention forward.
    Attention = "attention" {
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`: all query heads, then key heads, then value heads.
        read qkv,
        /// `[documents + 1]` i32: ascending document borders, first 0, last `tokens`; empty documents are allowed.
        read cu_seqlens,
        /// `[tokens, heads * head_dim]`
        write out,
        /// `[heads, tokens]` f32: natural-log sum of exponentials of the scaled scores.
        write lse,
    }
    scalars {
        /// Query heads.
        heads: u32,
        /// Key and value heads; divides `heads`.
        kv_heads: u32,
        /// Elements a head; a multiple of 8.
        head_dim: u32,
        /// Score scale, usually `1 / sqrt(head_dim)`.
        scale: f32,
    }
}

op! {
    /// Attention backward.
    AttentionBackward = "attention_backward" {
        /// `[tokens, heads * head_dim]`
        read dout,
        /// `[tokens, heads * head_dim]`: the forward's output.
        read out,
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        read qkv,
        /// `[heads, tokens]` f32: the forward's log sums.
        read lse,
        /// `[documents + 1]` i32
        read cu_seqlens,
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`; key and value gradients summed over the query heads of a group.
        write dqkv,
    }
    scalars {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements a head.
        head_dim: u32,
        /// Score scale.
        scale: f32,
    }
}

impl OpSpec for Attention {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        let sizes = (self.heads, self.kv_heads, self.head_dim);
        let tokens = check_inputs(&c, &self.qkv, &self.cu_seqlens, sizes, self.scale)?;
        c.shape("out", &self.out, &[tokens, self.heads as usize * self.head_dim as usize])?;
        c.shape("lse", &self.lse, &[self.heads as usize, tokens])?;
        c.one_float(&[("qkv", &self.qkv), ("out", &self.out)])?;
        c.dtype("lse", &self.lse, &[DType::F32])
    }

    /// `4 heads head_dim pairs`, for the products `q k^T` and `p v`, with `pairs = tokens (tokens + 1) / 2`: the causal
    /// half of one document. Where several documents are packed fewer are needed; their lengths are data, so they
    /// cannot be counted here.
    fn flops(&self) -> f64 {
        4.0 * self.heads as f64 * self.head_dim as f64 * pairs(&self.qkv)
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (qkv, borders) = (io.get(&self.qkv), io.ints(&self.cu_seqlens));
        let tokens = self.qkv.shape.dim(0);
        let starts = document_starts(&borders, tokens);
        let (heads, head_dim) = (self.heads as usize, self.head_dim as usize);
        let view = Heads::new(&qkv, heads, self.kv_heads as usize, head_dim);
        let scale = R::of(self.scale as f64);
        let mut out = vec![R::of(0.0); tokens * heads * head_dim];
        let mut lse = vec![R::of(0.0); heads * tokens];
        for h in 0..heads {
            for i in 0..tokens {
                let scores: Vec<R> = (starts[i]..=i).map(|j| scale * dot(view.q(i, h), view.k(j, h))).collect();
                let max = scores.iter().copied().fold(scores[0], R::max);
                let exps: Vec<R> = scores.iter().map(|&s| (s - max).exp()).collect();
                let sum: R = exps.iter().copied().sum();
                lse[h * tokens + i] = max + sum.ln();
                let o = &mut out[(i * heads + h) * head_dim..][..head_dim];
                for (j, &e) in (starts[i]..=i).zip(&exps) {
                    add_scaled(o, e.held_in(self.qkv.dtype), view.v(j, h));
                }
                o.iter_mut().for_each(|o| *o = *o / sum);
            }
        }
        io.set(&self.out, out);
        io.set(&self.lse, lse);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for_packs(|name, dtype, (heads, kv_heads, head_dim), scale, borders, fill| {
            let mut at = Places::default();
            let (forward, case_fills) = forward_op(&mut at, dtype, (heads, kv_heads, head_dim), scale, &borders);
            let mut case = Case::new(name, forward).fill(forward.qkv, fill);
            case.fills.push(case_fills);
            cases.push(case);
        });
        cases
    }
}

impl OpSpec for AttentionBackward {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        let sizes = (self.heads, self.kv_heads, self.head_dim);
        let tokens = check_inputs(&c, &self.qkv, &self.cu_seqlens, sizes, self.scale)?;
        let query = [tokens, self.heads as usize * self.head_dim as usize];
        c.shape("dout", &self.dout, &query)?;
        c.shape("out", &self.out, &query)?;
        c.shape("lse", &self.lse, &[self.heads as usize, tokens])?;
        c.shape("dqkv", &self.dqkv, &[tokens, self.qkv.shape.last()])?;
        c.one_float(&[("qkv", &self.qkv), ("dout", &self.dout), ("out", &self.out), ("dqkv", &self.dqkv)])?;
        c.dtype("lse", &self.lse, &[DType::F32])
    }

    /// `10 heads head_dim pairs`: five products (`q k^T` again, `dout v^T`, `dv`, `dq`, `dk`); pairs as in [`Attention`].
    fn flops(&self) -> f64 {
        10.0 * self.heads as f64 * self.head_dim as f64 * pairs(&self.qkv)
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (dout, out, qkv, lse) = (io.get(&self.dout), io.get(&self.out), io.get(&self.qkv), io.get(&self.lse));
        let tokens = self.qkv.shape.dim(0);
        let starts = document_starts(&io.ints(&self.cu_seqlens), tokens);
        let (heads, head_dim) = (self.heads as usize, self.head_dim as usize);
        let view = Heads::new(&qkv, heads, self.kv_heads as usize, head_dim);
        let (scale, dtype) = (R::of(self.scale as f64), self.qkv.dtype);
        let mut dqkv = vec![R::of(0.0); qkv.len()];
        for h in 0..heads {
            for i in 0..tokens {
                let at = (i * heads + h) * head_dim;
                let (dout, out) = (&dout[at..][..head_dim], &out[at..][..head_dim]);
                // sum_j p_ij dp_ij, because out_i = sum_j p_ij v_j.
                let delta = dot(dout, out);
                for j in starts[i]..=i {
                    let p = (scale * dot(view.q(i, h), view.k(j, h)) - lse[h * tokens + i]).exp();
                    let ds = (p * (dot(dout, view.v(j, h)) - delta) * scale).held_in(dtype);
                    add_scaled(&mut dqkv[view.v_at(j, h)..][..head_dim], p.held_in(dtype), dout);
                    add_scaled(&mut dqkv[view.q_at(i, h)..][..head_dim], ds, view.k(j, h));
                    add_scaled(&mut dqkv[view.k_at(j, h)..][..head_dim], ds, view.q(i, h));
                }
            }
        }
        io.set(&self.dqkv, dqkv);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for_packs(|name, dtype, sizes, scale, borders, fill| {
            let mut at = Places::default();
            let (forward, border_fill) = forward_op(&mut at, dtype, sizes, scale, &borders);
            let op = AttentionBackward {
                dout: at.tensor(dtype, forward.out.shape),
                out: forward.out,
                qkv: forward.qkv,
                lse: forward.lse,
                cu_seqlens: forward.cu_seqlens,
                dqkv: at.tensor(dtype, forward.qkv.shape),
                heads: forward.heads,
                kv_heads: forward.kv_heads,
                head_dim: forward.head_dim,
                scale,
            };
            let mut case = Case::new(name, op).fill(op.qkv, fill);
            case.fills.push(border_fill);
            cases.push(
                case.fill(op.out, Fill::From(Box::new(forward.into())))
                    .fill(op.lse, Fill::From(Box::new(forward.into()))),
            );
        });
        cases
    }
}

fn check_inputs(
    c: &Check,
    qkv: &Tensor,
    cu_seqlens: &Tensor,
    sizes: (u32, u32, u32),
    scale: f32,
) -> Result<usize, OpError> {
    let tokens = c.qkv("qkv", qkv, sizes, 8)?;
    let borders = c.vector("cu_seqlens", cu_seqlens)?;
    c.dtype("cu_seqlens", cu_seqlens, &[DType::I32])?;
    c.that(borders >= 2, || format!("operand cu_seqlens: expected at least two borders, given {borders}"))?;
    c.that(scale.is_finite(), || format!("scalar scale: expected a finite number, given {scale}"))?;
    Ok(tokens)
}

fn pairs(qkv: &Tensor) -> f64 {
    let tokens = qkv.shape.dim(0) as f64;
    tokens * (tokens + 1.0) / 2.0
}

/// The first token of each token's document.
///
/// # Panics
/// If the borders do not ascend from 0 to `tokens`: whoever packs the documents has to make sure.
fn document_starts(borders: &[i32], tokens: usize) -> Vec<usize> {
    assert!(
        borders.first() == Some(&0)
            && borders.last().is_some_and(|&last| last as usize == tokens)
            && borders.is_sorted(),
        "attention: document borders must ascend from 0 to {tokens}, given {borders:?}"
    );
    borders.windows(2).flat_map(|w| std::iter::repeat_n(w[0] as usize, (w[1] - w[0]) as usize)).collect()
}

/// The heads in rows of `[query heads, key heads, value heads]`.
struct Heads<'a, R> {
    qkv: &'a [R],
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl<'a, R> Heads<'a, R> {
    fn new(qkv: &'a [R], heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Heads { qkv, heads, kv_heads, head_dim }
    }
    fn at(&self, token: usize, head: usize) -> usize {
        (token * (self.heads + 2 * self.kv_heads) + head) * self.head_dim
    }
    fn group(&self, h: usize) -> usize {
        h / (self.heads / self.kv_heads)
    }
    fn q_at(&self, token: usize, h: usize) -> usize {
        self.at(token, h)
    }
    fn k_at(&self, token: usize, h: usize) -> usize {
        self.at(token, self.heads + self.group(h))
    }
    fn v_at(&self, token: usize, h: usize) -> usize {
        self.at(token, self.heads + self.kv_heads + self.group(h))
    }
    fn q(&self, token: usize, h: usize) -> &'a [R] {
        &self.qkv[self.q_at(token, h)..][..self.head_dim]
    }
    fn k(&self, token: usize, h: usize) -> &'a [R] {
        &self.qkv[self.k_at(token, h)..][..self.head_dim]
    }
    fn v(&self, token: usize, h: usize) -> &'a [R] {
        &self.qkv[self.v_at(token, h)..][..self.head_dim]
    }
}

fn dot<R: Real>(a: &[R], b: &[R]) -> R {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}

fn add_scaled<R: Real>(to: &mut [R], factor: R, x: &[R]) {
    to.iter_mut().zip(x).for_each(|(to, &x)| *to += factor * x);
}

/// A forward over these documents, and the fill of its borders.
fn forward_op(
    at: &mut Places,
    dtype: DType,
    (heads, kv_heads, head_dim): (u32, u32, u32),
    scale: f32,
    borders: &[i32],
) -> (Attention, (Span, Fill)) {
    let tokens = borders[borders.len() - 1] as usize;
    let op = Attention {
        qkv: at.tensor(dtype, [tokens, (heads + 2 * kv_heads) as usize * head_dim as usize]),
        cu_seqlens: at.tensor(DType::I32, [borders.len()]),
        out: at.tensor(dtype, [tokens, (heads * head_dim) as usize]),
        lse: at.tensor(DType::F32, [heads as usize, tokens]),
        heads,
        kv_heads,
        head_dim,
        scale,
    };
    (op, (op.cu_seqlens.span, Fill::Ints(borders.to_vec())))
}

/// The cases' names, dtypes, (heads, kv_heads, head_dim), scales, document borders and fills of `qkv`.
fn for_packs(mut make: impl FnMut(String, DType, (u32, u32, u32), f32, Vec<i32>, Fill)) {
    for dtype in [DType::F32, DType::Bf16] {
        for (what, sizes, lengths, spread) in [
            ("one token", (1, 1, 8), vec![1], 1.0),
            ("31 tokens", (3, 1, 8), vec![31], 1.0),
            ("one token before 32", (6, 2, 40), vec![1, 32], 1.0),
            ("33 tokens, six heads a group", (6, 1, 64), vec![33], 1.0),
            ("empty documents between and at the end", (7, 1, 96), vec![5, 0, 28, 0, 0], 1.0),
            ("every head its own, wide", (2, 2, 128), vec![70], 1.0),
            ("one-token documents inside", (9, 3, 64), vec![17, 1, 1, 46], 1.0),
            ("only one-token documents", (2, 1, 16), vec![1; 33], 1.0),
            ("130 tokens", (2, 1, 64), vec![130], 1.0),
            ("an empty document first", (2, 1, 24), vec![0, 40], 1.0),
            ("scores in the thousands", (2, 1, 64), vec![20, 13], 60.0),
            ("scores near zero", (2, 1, 64), vec![33], 1e-3),
        ] {
            let borders = [0].into_iter().chain(lengths.iter().scan(0, |end, len| {
                *end += len;
                Some(*end)
            }));
            let scale = 1.0 / (sizes.2 as f32).sqrt();
            make(format!("{dtype} {what}"), dtype, sizes, scale, borders.collect(), Fill::Normal(spread));
        }
        make(format!("{dtype} another scale"), dtype, (2, 2, 8), 0.7, vec![0, 9, 40], Fill::Normal(1.0));
    }
}
