//! Selected rows of a matrix.

use crate::check::Check;
use crate::{Case, Fill, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::DType;

op! {
    /// `y[i] = x[index[i]]`.
    GatherRows = "gather_rows" {
        /// `[rows, dim]`
        read x,
        /// `[n]` i32, each in `0..rows`
        read index,
        /// `[n, dim]`
        write y,
    }
}

impl OpSpec for GatherRows {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        let (_, dim) = c.matrix("x", &self.x)?;
        let n = c.vector("index", &self.index)?;
        c.dtype("index", &self.index, &[DType::I32])?;
        c.shape("y", &self.y, &[n, dim])?;
        c.one_float(&[("x", &self.x), ("y", &self.y)])
    }

    /// None: only bytes move.
    fn flops(&self) -> f64 {
        0.0
    }

    /// Every gathered row read and written once, and the index; rows that nothing asks for are not touched.
    fn bytes(&self) -> f64 {
        2.0 * self.y.span.len_bytes as f64 + self.index.span.len_bytes as f64
    }

    fn exact(&self) -> bool {
        true
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (x, index) = (io.get(&self.x), io.ints(&self.index));
        let (rows, dim) = (self.x.shape.dim(0), self.x.shape.dim(1));
        let mut y = Vec::with_capacity(self.y.elems());
        for (i, &row) in index.iter().enumerate() {
            assert!(row >= 0 && (row as usize) < rows, "gather_rows: index[{i}] is {row}, x has {rows} rows");
            y.extend_from_slice(&x[row as usize * dim..][..dim]);
        }
        io.set(&self.y, y);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for dtype in [DType::F32, DType::Bf16] {
            for (what, rows, dim, index) in [
                ("one row of one", 1, 1, vec![0]),
                ("none twice, backwards", 33, 259, (0..31).rev().collect()),
                ("first and last row, repeated", 259, 40, vec![258, 0, 0, 258, 258, 7]),
                ("more than there are", 2, 8, (0..33).map(|i| i % 2).collect()),
            ] {
                let mut at = Places::default();
                let op = GatherRows {
                    x: at.tensor(dtype, [rows, dim]),
                    index: at.tensor(DType::I32, [index.len()]),
                    y: at.tensor(dtype, [index.len(), dim]),
                };
                cases.push(Case::new(format!("{dtype}, {what}"), op).fill(op.index, Fill::Ints(index)));
            }
        }
        cases
    }
}
