//! [`op!`](crate::op): an op's argument struct with its operand list; [`OpSpec`]: what each op then says for itself.

use crate::{Case, OpError, Real, RefIo};
use megatrain_base::{Access, Tensor};

/// The operands of one op, in field order.
pub type OperandList = Vec<(Tensor, Access)>;

/// Derived by [`op!`](crate::op): the operands of an op's arguments.
pub trait OpArgs: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// Name in traces, errors and test cases.
    const NAME: &'static str;
    /// The operands' names, in field order.
    const OPERANDS: &'static [&'static str];
    /// Operands with their access, in field order.
    fn operands(&self) -> OperandList;
    /// Rewrites every operand, e.g. from a symbolic buffer to its placed address.
    fn map(&mut self, rewrite: &mut dyn FnMut(&mut Tensor));
}

/// What an op says for itself.
pub trait OpSpec: OpArgs {
    /// Whether shapes, dtypes and scalars fit together.
    ///
    /// # Errors
    /// Names the op, the operand and what was expected.
    fn check(&self) -> Result<(), OpError>;
    /// Floating-point operations, a fused multiply-add counting two.
    fn flops(&self) -> f64;
    /// Bytes moved at least: by default every operand once per direction.
    fn bytes(&self) -> f64 {
        self.operands()
            .iter()
            .map(|(t, a)| t.span.len_bytes as f64 * if *a == Access::Update { 2.0 } else { 1.0 })
            .sum()
    }
    /// Whether every executor must give the twin's bits: true where each output element is a copy or one rounded
    /// operation.
    fn exact(&self) -> bool {
        false
    }
    /// The plain reference twin. Works on operands that [`OpSpec::check`] accepts and panics on index data out of range.
    fn reference<R: Real>(&self, io: &mut RefIo<R>);
    /// Conformance cases: ordinary sizes and the edges. Every executor must pass them.
    fn cases() -> Vec<Case>;
}

/// Declares an op's arguments.
///
/// Operand fields are marked `read`, `write` (every element written, none read), `update` (in place), or
/// `accum(flag)`: `update` when the scalar field `flag` is true and `write` otherwise.
#[macro_export]
macro_rules! op {
    (
        $(#[$doc:meta])*
        $name:ident = $label:literal {
            $( $(#[$fdoc:meta])* $access:ident $(($flag:ident))? $field:ident, )*
        }
        $( scalars { $( $(#[$sdoc:meta])* $scalar:ident : $ty:ty, )* } )?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub struct $name {
            $( $(#[$fdoc])* pub $field: megatrain_base::Tensor, )*
            $( $( $(#[$sdoc])* pub $scalar: $ty, )* )?
        }
        impl $crate::OpArgs for $name {
            const NAME: &'static str = $label;
            const OPERANDS: &'static [&'static str] = &[$(stringify!($field),)*];
            fn operands(&self) -> $crate::OperandList {
                vec![ $( (self.$field, $crate::op!(@access self $access $(($flag))?)), )* ]
            }
            fn map(&mut self, rewrite: &mut dyn FnMut(&mut megatrain_base::Tensor)) {
                $( rewrite(&mut self.$field); )*
            }
        }
    };
    (@access $self:ident read) => { megatrain_base::Access::Read };
    (@access $self:ident write) => { megatrain_base::Access::Write };
    (@access $self:ident update) => { megatrain_base::Access::Update };
    (@access $self:ident accum($flag:ident)) => {
        if $self.$flag { megatrain_base::Access::Update } else { megatrain_base::Access::Write }
    };
}
