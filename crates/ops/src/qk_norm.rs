//! RMS normalisation of every query and key head (Qwen3); value heads pass through unchanged.

use crate::check::Check;
use crate::rms_norm::{row_backward, rstd_of};
use crate::{Case, Fill, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::{DType, Tensor};

op! {
    /// `out = [rms_norm(q heads) * q_weight, rms_norm(k heads) * k_weight, v]`.
    QkNorm = "qk_norm" {
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        read qkv,
        /// `[head_dim]`
        read q_weight,
        /// `[head_dim]`
        read k_weight,
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        write out,
    }
    scalars {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements a head.
        head_dim: u32,
        /// Added to the mean square.
        eps: f32,
    }
}

op! {
    /// Backward of [`QkNorm`]; the reciprocal norms are computed again from `qkv`.
    QkNormBackward = "qk_norm_backward" {
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        read dout,
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`: the forward's input.
        read qkv,
        /// `[head_dim]`
        read q_weight,
        /// `[head_dim]`
        read k_weight,
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        write dqkv,
        /// `[head_dim]` f32
        accum(accumulate) dq_weight,
        /// `[head_dim]` f32
        accum(accumulate) dk_weight,
    }
    scalars {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements a head.
        head_dim: u32,
        /// Added to the mean square.
        eps: f32,
        /// Add to the weight gradients instead of overwriting them.
        accumulate: bool,
    }
}

impl OpSpec for QkNorm {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        let tokens = c.qkv("qkv", &self.qkv, (self.heads, self.kv_heads, self.head_dim), 1)?;
        c.shape("q_weight", &self.q_weight, &[self.head_dim as usize])?;
        c.shape("k_weight", &self.k_weight, &[self.head_dim as usize])?;
        c.shape("out", &self.out, &[tokens, self.qkv.shape.last()])?;
        c.one_float(&[
            ("qkv", &self.qkv),
            ("q_weight", &self.q_weight),
            ("k_weight", &self.k_weight),
            ("out", &self.out),
        ])?;
        c.positive("eps", self.eps as f64)
    }

    /// Four an element of the query and key heads, as in [`crate::RmsNorm`].
    fn flops(&self) -> f64 {
        4.0 * normed_elems(&self.qkv, self.heads, self.kv_heads)
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (mut out, q_weight, k_weight) = (io.get(&self.qkv), io.get(&self.q_weight), io.get(&self.k_weight));
        for row in out.chunks_mut(self.qkv.shape.last()) {
            for (head, x) in row.chunks_mut(self.head_dim as usize).enumerate() {
                let weight = match head as u32 {
                    h if h < self.heads => &q_weight,
                    h if h < self.heads + self.kv_heads => &k_weight,
                    _ => break,
                };
                let rstd = rstd_of(x, self.eps);
                x.iter_mut().zip(weight).for_each(|(x, &w)| *x = *x * rstd * w);
            }
        }
        io.set(&self.out, out);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for_sizes(|name, dtype, tokens, (heads, kv_heads, head_dim), fill| {
            let mut at = Places::default();
            let width = (heads + 2 * kv_heads) as usize * head_dim as usize;
            let op = QkNorm {
                qkv: at.tensor(dtype, [tokens, width]),
                q_weight: at.tensor(dtype, [head_dim as usize]),
                k_weight: at.tensor(dtype, [head_dim as usize]),
                out: at.tensor(dtype, [tokens, width]),
                heads,
                kv_heads,
                head_dim,
                eps: 1e-6,
            };
            cases.push(Case::new(name, op).fill(op.qkv, fill));
        });
        cases
    }
}

impl OpSpec for QkNormBackward {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        let tokens = c.qkv("qkv", &self.qkv, (self.heads, self.kv_heads, self.head_dim), 1)?;
        let full = [tokens, self.qkv.shape.last()];
        let head = [self.head_dim as usize];
        c.shape("dout", &self.dout, &full)?;
        c.shape("q_weight", &self.q_weight, &head)?;
        c.shape("k_weight", &self.k_weight, &head)?;
        c.shape("dqkv", &self.dqkv, &full)?;
        c.shape("dq_weight", &self.dq_weight, &head)?;
        c.shape("dk_weight", &self.dk_weight, &head)?;
        c.one_float(&[
            ("qkv", &self.qkv),
            ("dout", &self.dout),
            ("q_weight", &self.q_weight),
            ("k_weight", &self.k_weight),
            ("dqkv", &self.dqkv),
        ])?;
        c.dtype("dq_weight", &self.dq_weight, &[DType::F32])?;
        c.dtype("dk_weight", &self.dk_weight, &[DType::F32])?;
        c.positive("eps", self.eps as f64)
    }

    /// Eleven an element of the query and key heads: two for the norm again, nine as in [`crate::RmsNormBackward`].
    fn flops(&self) -> f64 {
        11.0 * normed_elems(&self.qkv, self.heads, self.kv_heads)
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (mut dqkv, qkv) = (io.get(&self.dout), io.get(&self.qkv));
        let (q_weight, k_weight) = (io.get(&self.q_weight), io.get(&self.k_weight));
        let (width, head_dim) = (self.qkv.shape.last(), self.head_dim as usize);
        let (mut dq_weight, mut dk_weight) = (vec![R::of(0.0); head_dim], vec![R::of(0.0); head_dim]);
        for (grad, row) in dqkv.chunks_mut(width).zip(qkv.chunks(width)) {
            for (head, (g, x)) in grad.chunks_mut(head_dim).zip(row.chunks(head_dim)).enumerate() {
                let (weight, dweight) = match head as u32 {
                    h if h < self.heads => (&q_weight, &mut dq_weight),
                    h if h < self.heads + self.kv_heads => (&k_weight, &mut dk_weight),
                    _ => break,
                };
                let dx = row_backward(g, x, weight, rstd_of(x, self.eps), dweight);
                g.copy_from_slice(&dx);
            }
        }
        io.set(&self.dqkv, dqkv);
        io.add_or_set(&self.dq_weight, dq_weight, self.accumulate);
        io.add_or_set(&self.dk_weight, dk_weight, self.accumulate);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for_sizes(|name, dtype, tokens, (heads, kv_heads, head_dim), fill| {
            for accumulate in [false, true] {
                let mut at = Places::default();
                let width = (heads + 2 * kv_heads) as usize * head_dim as usize;
                let op = QkNormBackward {
                    dout: at.tensor(dtype, [tokens, width]),
                    qkv: at.tensor(dtype, [tokens, width]),
                    q_weight: at.tensor(dtype, [head_dim as usize]),
                    k_weight: at.tensor(dtype, [head_dim as usize]),
                    dqkv: at.tensor(dtype, [tokens, width]),
                    dq_weight: at.tensor(DType::F32, [head_dim as usize]),
                    dk_weight: at.tensor(DType::F32, [head_dim as usize]),
                    heads,
                    kv_heads,
                    head_dim,
                    eps: 1e-6,
                    accumulate,
                };
                cases.push(Case::new(format!("{name}, accumulate={accumulate}"), op).fill(op.qkv, fill.clone()));
            }
        });
        cases
    }
}

/// Elements of the heads that are normalised.
fn normed_elems(qkv: &Tensor, heads: u32, kv_heads: u32) -> f64 {
    let normed = heads as f64 + kv_heads as f64;
    qkv.elems() as f64 * normed / (normed + kv_heads as f64)
}

/// The cases' names, dtypes, tokens, (heads, kv_heads, head_dim) and fills of `qkv`.
fn for_sizes(mut make: impl FnMut(String, DType, usize, (u32, u32, u32), Fill)) {
    for dtype in [DType::F32, DType::Bf16] {
        for (tokens, sizes) in
            [(1, (1, 1, 8)), (31, (3, 1, 40)), (33, (6, 1, 64)), (5, (7, 7, 96)), (3, (4, 2, 128)), (2, (2, 1, 1))]
        {
            make(format!("{dtype} {tokens} tokens, heads {sizes:?}"), dtype, tokens, sizes, Fill::Normal(1.0));
        }
        make(format!("{dtype} large values"), dtype, 3, (2, 1, 64), Fill::Normal(1e4));
        make(format!("{dtype} heads of zeros"), dtype, 1, (2, 1, 8), Fill::Values(vec![0.0; 32]));
    }
}
