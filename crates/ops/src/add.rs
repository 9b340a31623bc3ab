//! `out = a + b`, elementwise.

use crate::check::Check;
use crate::{Case, Fill, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::DType;

op! {
    /// `out = a + b`. All three have the same shape and dtype.
    Add = "add" {
        /// `[...]`
        read a,
        /// `[...]`
        read b,
        /// `[...]`
        write out,
    }
}

impl OpSpec for Add {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        c.one_float(&[("a", &self.a), ("b", &self.b), ("out", &self.out)])?;
        for (name, t) in [("b", &self.b), ("out", &self.out)] {
            c.that(t.shape == self.a.shape, || {
                format!("operand {name}: expected the shape of a, {}, given {}", self.a.shape, t.shape)
            })?;
        }
        Ok(())
    }

    /// One an element.
    fn flops(&self) -> f64 {
        self.out.elems() as f64
    }

    fn exact(&self) -> bool {
        true
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (a, b) = (io.get(&self.a), io.get(&self.b));
        io.set(&self.out, a.into_iter().zip(b).map(|(a, b)| a + b).collect());
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for dtype in [DType::F32, DType::Bf16] {
            for (rows, dim) in [(1usize, 1usize), (31, 33), (33, 259)] {
                let mut at = Places::default();
                let [a, b, out] = [(); 3].map(|()| at.tensor(dtype, [rows, dim]));
                cases.push(Case::new(format!("{dtype} {rows}x{dim}"), Add { a, b, out }));
                let twice = Case::new(format!("{dtype} {rows}x{dim}, an operand with itself"), Add { a, b: a, out });
                cases.push(twice.fill(a, Fill::Normal(1e4)));
            }
        }
        cases
    }
}
