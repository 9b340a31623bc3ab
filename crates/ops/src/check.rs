//! [`Check`]: the shape and dtype checks that ops share. Every message says which operand, what was expected, what was given.

use crate::{OpArgs, OpError};
use megatrain_base::{DType, Tensor};

/// The float dtypes ops compute with.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::Bf16];

/// Checks the operands of one op.
pub(crate) struct Check {
    op: &'static str,
}

impl Check {
    /// Starts with what holds for every op: no operand is empty, each is as long as its shape says and starts at a
    /// multiple of its element size, and what is written overlaps nothing else.
    pub(crate) fn start<O: OpArgs>(op: &O) -> Result<Check, OpError> {
        let check = Check { op: O::NAME };
        let operands = op.operands();
        for ((t, _), name) in operands.iter().zip(O::OPERANDS) {
            let bytes = t.shape.elems() * t.dtype.size_bytes();
            check.that(bytes > 0, || format!("operand {name}: expected at least one element, given {t}"))?;
            check.that(bytes == t.span.len_bytes, || format!("operand {name}: expected {bytes} bytes, given {t}"))?;
            check.that(t.span.offset_bytes.is_multiple_of(t.dtype.size_bytes()), || {
                format!("operand {name}: expected a start at a multiple of {} bytes, given {t}", t.dtype.size_bytes())
            })?;
        }
        for (i, ((a, how_a), name_a)) in operands.iter().zip(O::OPERANDS).enumerate() {
            for ((b, how_b), name_b) in operands.iter().zip(O::OPERANDS).skip(i + 1) {
                check.that(!(how_a.conflicts(*how_b) && a.span.overlaps(&b.span)), || {
                    format!(
                        "operands {name_a} and {name_b}: one is written, so expected separate memory, given {a} and {b}"
                    )
                })?;
            }
        }
        Ok(check)
    }

    /// Refuses with `what` unless `holds`.
    pub(crate) fn that(&self, holds: bool, what: impl FnOnce() -> String) -> Result<(), OpError> {
        if holds { Ok(()) } else { Err(OpError { op: self.op, what: what() }) }
    }

    /// `t` has exactly these dimensions.
    pub(crate) fn shape(&self, name: &str, t: &Tensor, dims: &[usize]) -> Result<(), OpError> {
        let fits = t.shape.rank() == dims.len() && dims.iter().enumerate().all(|(i, &d)| t.shape.dim(i) == d);
        self.that(fits, || format!("operand {name}: expected shape {dims:?}, given {}", t.shape))
    }

    /// `t` is a matrix; returns (rows, columns).
    pub(crate) fn matrix(&self, name: &str, t: &Tensor) -> Result<(usize, usize), OpError> {
        self.that(t.shape.rank() == 2, || format!("operand {name}: expected two dimensions, given shape {}", t.shape))?;
        Ok((t.shape.dim(0), t.shape.dim(1)))
    }

    /// `t` is a vector; returns its length.
    pub(crate) fn vector(&self, name: &str, t: &Tensor) -> Result<usize, OpError> {
        self.that(t.shape.rank() == 1, || format!("operand {name}: expected one dimension, given shape {}", t.shape))?;
        Ok(t.shape.dim(0))
    }

    /// `t` has one of these dtypes.
    pub(crate) fn dtype(&self, name: &str, t: &Tensor, allowed: &[DType]) -> Result<(), OpError> {
        self.that(allowed.contains(&t.dtype), || {
            let names: Vec<String> = allowed.iter().map(DType::to_string).collect();
            format!("operand {name}: expected dtype {}, given {}", names.join(" or "), t.dtype)
        })
    }

    /// All of these have the dtype of the first, which is a float the ops compute with.
    pub(crate) fn one_float(&self, tensors: &[(&str, &Tensor)]) -> Result<(), OpError> {
        let (first_name, first) = tensors[0];
        self.dtype(first_name, first, FLOATS)?;
        for (name, t) in &tensors[1..] {
            self.that(t.dtype == first.dtype, || {
                format!("operand {name}: expected the dtype of {first_name}, {}, given {}", first.dtype, t.dtype)
            })?;
        }
        Ok(())
    }

    /// A scalar that must be a positive finite number.
    pub(crate) fn positive(&self, name: &str, value: f64) -> Result<(), OpError> {
        self.that(value > 0.0 && value.is_finite(), || {
            format!("scalar {name}: expected a positive finite number, given {value}")
        })
    }

    /// A matrix of query, key and value heads side by side, heads being multiples of `multiple` wide; returns its rows.
    pub(crate) fn qkv(
        &self,
        name: &str,
        t: &Tensor,
        (heads, kv_heads, head_dim): (u32, u32, u32),
        multiple: u32,
    ) -> Result<usize, OpError> {
        self.that(heads > 0 && kv_heads > 0 && heads.is_multiple_of(kv_heads), || {
            format!("scalar kv_heads: expected a divisor of heads = {heads}, given {kv_heads}")
        })?;
        self.that(head_dim > 0 && head_dim.is_multiple_of(multiple), || {
            format!("scalar head_dim: expected a multiple of {multiple}, given {head_dim}")
        })?;
        let (rows, width) = self.matrix(name, t)?;
        let expected = (heads as u64 + 2 * kv_heads as u64).saturating_mul(head_dim as u64);
        self.that(width as u64 == expected, || {
            format!(
                "operand {name}: expected ({heads} + 2 x {kv_heads}) x {head_dim} = {expected} columns, given {width}"
            )
        })?;
        Ok(rows)
    }
}
