//! Rotary position embedding (Su et al. 2021, arXiv 2104.09864) in the half-split layout of Hugging Face: within a head, element `i`
//! pairs with `i + head_dim / 2` and turns by `position * inv_freq[i]`, `inv_freq[i] = theta^(-2i / head_dim)`, possibly scaled.
//!
//! The angle is exact to f64: an executor that rounds it to f32 fails the cases with far positions.

use crate::check::{Check, FLOATS};
use crate::{Case, Fill, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::DType;

op! {
    /// Rotates query and key heads in place; value heads are left alone.
    Rope = "rope" {
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        update qkv,
        /// `[tokens]` i32: position within the document
        read positions,
    }
    scalars {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements a head; even.
        head_dim: u32,
        /// Frequencies.
        rope: RopeParams,
        /// Rotate backwards: the gradient of the rotation.
        inverse: bool,
    }
}

/// How the frequencies come about.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RopeParams {
    /// Base of the geometric series.
    pub theta: f64,
    /// Change for long contexts.
    pub scaling: RopeScaling,
}

/// Frequency scaling for long contexts, named as in Hugging Face's `rope_scaling.rope_type`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RopeScaling {
    /// None.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a linear blend between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the pretraining.
        original_context: f64,
    },
}

impl RopeParams {
    /// `inv_freq[0..head_dim / 2]` in f64.
    pub fn inv_freq(&self, head_dim: u32) -> Vec<f64> {
        (0..head_dim / 2)
            .map(|i| {
                let freq = self.theta.powf(-2.0 * i as f64 / head_dim as f64);
                match self.scaling {
                    RopeScaling::Default => freq,
                    RopeScaling::Linear { factor } => freq / factor,
                    RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                        let wavelength = 2.0 * std::f64::consts::PI / freq;
                        if wavelength > original_context / low_freq_factor {
                            freq / factor
                        } else if wavelength < original_context / high_freq_factor {
                            freq
                        } else {
                            let blend = (original_context / wavelength - low_freq_factor)
                                / (high_freq_factor - low_freq_factor);
                            (1.0 - blend) * freq / factor + blend * freq
                        }
                    }
                }
            })
            .collect()
    }
}

impl RopeParams {
    fn check(&self, c: &Check) -> Result<(), OpError> {
        c.positive("rope.theta", self.theta)?;
        match self.scaling {
            RopeScaling::Default => Ok(()),
            RopeScaling::Linear { factor } => c.positive("rope.scaling.factor", factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                c.positive("rope.scaling.factor", factor)?;
                c.positive("rope.scaling.low_freq_factor", low_freq_factor)?;
                c.positive("rope.scaling.high_freq_factor", high_freq_factor)?;
                c.positive("rope.scaling.original_context", original_context)?;
                c.that(high_freq_factor > low_freq_factor, || {
                    format!(
                        "scalar rope.scaling.high_freq_factor: expected more than low_freq_factor = {low_freq_factor}, \
                         given {high_freq_factor}"
                    )
                })
            }
        }
    }
}

impl OpSpec for Rope {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        let tokens = c.qkv("qkv", &self.qkv, (self.heads, self.kv_heads, self.head_dim), 2)?;
        c.dtype("qkv", &self.qkv, FLOATS)?;
        c.shape("positions", &self.positions, &[tokens])?;
        c.dtype("positions", &self.positions, &[DType::I32])?;
        self.rope.check(&c)
    }

    /// Three an element of the query and key heads: two products and a sum. Sines and cosines are not counted.
    fn flops(&self) -> f64 {
        let rotated = (self.heads as f64 + self.kv_heads as f64) * self.head_dim as f64;
        3.0 * self.positions.elems() as f64 * rotated
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (mut qkv, positions) = (io.get(&self.qkv), io.ints(&self.positions));
        let inv_freq = self.rope.inv_freq(self.head_dim);
        let (head_dim, half) = (self.head_dim as usize, self.head_dim as usize / 2);
        let rotated = (self.heads as usize + self.kv_heads as usize) * head_dim;
        for (row, &position) in qkv.chunks_mut(self.qkv.shape.last()).zip(&positions) {
            for head in row[..rotated].chunks_mut(head_dim) {
                for i in 0..half {
                    // In f64: an f32 angle at position 100000 would be off by 0.004.
                    let angle = position as f64 * inv_freq[i];
                    let sin = if self.inverse { -angle.sin() } else { angle.sin() };
                    let (sin, cos) = (R::of(sin), R::of(angle.cos()));
                    let (a, b) = (head[i], head[i + half]);
                    head[i] = a * cos - b * sin;
                    head[i + half] = b * cos + a * sin;
                }
            }
        }
        io.set(&self.qkv, qkv);
    }

    fn cases() -> Vec<Case> {
        let llama3 =
            RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192.0 };
        let documents: Vec<i32> = (0..5).chain(0..1).chain(0..27).collect();
        let mut cases = Vec::new();
        for dtype in [DType::F32, DType::Bf16] {
            for (what, (heads, kv_heads, head_dim), theta, scaling, positions) in [
                ("one token at 0", (1, 1, 8), 1e4, RopeScaling::Default, vec![0]),
                ("one token at 5", (3, 1, 64), 1e4, RopeScaling::Default, vec![5]),
                ("the smallest head", (2, 1, 2), 1e4, RopeScaling::Default, vec![3, 1, 4]),
                ("documents", (6, 1, 40), 1e4, RopeScaling::Default, documents.clone()),
                ("linear scaling", (7, 7, 8), 1e4, RopeScaling::Linear { factor: 4.0 }, documents.clone()),
                ("llama3 scaling", (9, 3, 64), 5e5, llama3, documents.clone()),
                ("llama3 scaling, wide heads", (2, 2, 128), 5e5, llama3, (8190..8195).collect()),
                ("far positions", (2, 1, 96), 1e6, RopeScaling::Default, vec![1023, 32767, 100_003, 131_071]),
            ] {
                for inverse in [false, true] {
                    let mut at = Places::default();
                    let width = (heads + 2 * kv_heads) as usize * head_dim as usize;
                    let op = Rope {
                        qkv: at.tensor(dtype, [positions.len(), width]),
                        positions: at.tensor(DType::I32, [positions.len()]),
                        heads,
                        kv_heads,
                        head_dim,
                        rope: RopeParams { theta, scaling },
                        inverse,
                    };
                    cases.push(
                        Case::new(format!("{dtype} {what}, inverse={inverse}"), op)
                            .fill(op.positions, Fill::Ints(positions.clone())),
                    );
                }
            }
        }
        cases
    }
}
