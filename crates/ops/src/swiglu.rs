//! SwiGLU (Shazeer 2020, arXiv 2002.05202): `out = silu(gate) * up`, `silu(z) = z / (1 + e^-z)`.

use crate::check::Check;
use crate::{Case, Fill, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::{DType, Tensor};

op! {
    /// SwiGLU forward.
    SwiGlu = "swiglu" {
        /// `[tokens, 2 * intermediate]`: gate columns, then up columns
        read gate_up,
        /// `[tokens, intermediate]`
        write out,
    }
}

op! {
    /// SwiGLU backward, in place: `gate_up` holds the forward's input on entry and its gradient on return.
    SwiGluBackward = "swiglu_backward" {
        /// `[tokens, intermediate]`
        read dout,
        /// `[tokens, 2 * intermediate]`
        update gate_up,
    }
}

impl OpSpec for SwiGlu {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        check_shapes(&c, &self.gate_up, "out", &self.out)
    }

    /// Five an element of `out`: the exponential (one), the sum, the quotient, and two products.
    fn flops(&self) -> f64 {
        5.0 * self.out.elems() as f64
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let gate_up = io.get(&self.gate_up);
        let n = self.out.shape.last();
        let mut out = Vec::with_capacity(self.out.elems());
        for row in gate_up.chunks(2 * n) {
            let (gate, up) = row.split_at(n);
            out.extend(gate.iter().zip(up).map(|(&z, &u)| z * sigmoid(z) * u));
        }
        io.set(&self.out, out);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for_sizes(|name, dtype, tokens, n, fill| {
            let mut at = Places::default();
            let op = SwiGlu { gate_up: at.tensor(dtype, [tokens, 2 * n]), out: at.tensor(dtype, [tokens, n]) };
            cases.push(Case::new(name, op).fill(op.gate_up, fill));
        });
        cases
    }
}

impl OpSpec for SwiGluBackward {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        check_shapes(&c, &self.gate_up, "dout", &self.dout)
    }

    /// Eleven an element of `dout`: the sigmoid (three), `silu`, `dup`, and six for `dgate`.
    fn flops(&self) -> f64 {
        11.0 * self.dout.elems() as f64
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (dout, mut gate_up) = (io.get(&self.dout), io.get(&self.gate_up));
        let n = self.dout.shape.last();
        for (row, dout) in gate_up.chunks_mut(2 * n).zip(dout.chunks(n)) {
            let (gate, up) = row.split_at_mut(n);
            for ((z, u), &d) in gate.iter_mut().zip(up).zip(dout) {
                // silu'(z) = s + z s (1 - s), and 1 - s(z) = s(-z) without cancellation.
                let (s, rest) = (sigmoid(*z), sigmoid(-*z));
                let dgate = d * *u * (s * (R::of(1.0) + *z * rest));
                *u = d * (*z * s);
                *z = dgate;
            }
        }
        io.set(&self.gate_up, gate_up);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for_sizes(|name, dtype, tokens, n, fill| {
            let mut at = Places::default();
            let op = SwiGluBackward { dout: at.tensor(dtype, [tokens, n]), gate_up: at.tensor(dtype, [tokens, 2 * n]) };
            cases.push(Case::new(name, op).fill(op.gate_up, fill));
        });
        cases
    }
}

fn check_shapes(c: &Check, gate_up: &Tensor, name: &str, half: &Tensor) -> Result<(), OpError> {
    let (tokens, n) = c.matrix(name, half)?;
    c.shape("gate_up", gate_up, &[tokens, 2 * n])?;
    c.one_float(&[("gate_up", gate_up), (name, half)])
}

/// `1 / (1 + e^-z)`, without overflow for either sign.
fn sigmoid<R: Real>(z: R) -> R {
    let one = R::of(1.0);
    if z >= R::of(0.0) {
        one / (one + (-z).exp())
    } else {
        let e = z.exp();
        e / (one + e)
    }
}

/// The cases' names, dtypes, tokens, intermediate sizes and fills of `gate_up`.
fn for_sizes(mut make: impl FnMut(String, DType, usize, usize, Fill)) {
    for dtype in [DType::F32, DType::Bf16] {
        for (tokens, n) in [(1, 1), (1, 96), (31, 40), (33, 259), (2, 1536)] {
            make(format!("{dtype} {tokens}x{n}"), dtype, tokens, n, Fill::Normal(1.0));
        }
        make(format!("{dtype} gates far from zero"), dtype, 3, 33, Fill::Normal(100.0));
        let far = [1e4, -1e4, 0.0, -0.0, 88.0, -88.0, -104.0, 20.0];
        let edges = far.iter().copied().chain(far.iter().rev().map(|x| x * 0.01)).collect();
        make(format!("{dtype} gates at the ends of the exponential"), dtype, 1, 8, Fill::Values(edges));
    }
}
