//! The list of ops: one line each.

use crate::{Case, OpArgs, OpError, OpSpec, OperandList, Real, RefIo};
use megatrain_base::{Access, Command, Span, Tensor, Work};

macro_rules! ops {
    ($($name:ident,)*) => {
        /// Any op.
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub enum Op {
            $(#[doc = concat!("See [`crate::", stringify!($name), "`].")] $name(crate::$name),)*
        }
        $(impl From<crate::$name> for Op {
            fn from(op: crate::$name) -> Op { Op::$name(op) }
        })*
        impl Op {
            /// Name in traces and errors.
            pub fn name(&self) -> &'static str { match self { $(Op::$name(_) => crate::$name::NAME,)* } }
            /// Operands with their access.
            pub fn operands(&self) -> OperandList { match self { $(Op::$name(op) => op.operands(),)* } }
            /// The operands' names, in the order of [`Op::operands`].
            pub fn operand_names(&self) -> &'static [&'static str] {
                match self { $(Op::$name(_) => <crate::$name as OpArgs>::OPERANDS,)* }
            }
            /// Rewrites every operand.
            pub fn map(&mut self, rewrite: &mut dyn FnMut(&mut Tensor)) { match self { $(Op::$name(op) => op.map(rewrite),)* } }
            /// Shape and dtype checks.
            ///
            /// # Errors
            /// See [`OpSpec::check`].
            pub fn check(&self) -> Result<(), OpError> { match self { $(Op::$name(op) => op.check(),)* } }
            /// Floating-point operations and bytes.
            pub fn work(&self) -> Work { match self { $(Op::$name(op) => Work { flops: op.flops(), bytes: op.bytes() },)* } }
            /// Whether every executor must give the twin's bits.
            pub fn exact(&self) -> bool { match self { $(Op::$name(op) => op.exact(),)* } }
            /// Runs the reference twin.
            pub fn reference<R: Real>(&self, io: &mut RefIo<R>) { match self { $(Op::$name(op) => op.reference(io),)* } }
            /// The conformance cases of every op.
            pub fn all_cases() -> Vec<Case> { let mut all = Vec::new(); $(all.extend(crate::$name::cases());)* all }
            /// The names of every op, in list order.
            pub const NAMES: &'static [&'static str] = &[$(crate::$name::NAME,)*];
        }
    };
}

ops! {
    Add,
    Attention,
    AttentionBackward,
    BiasAdd,
    BiasGrad,
    Cast,
    CrossEntropy,
    CrossEntropyLoss,
    GatherRows,
    Matmul,
    QkNorm,
    QkNormBackward,
    RmsNorm,
    RmsNormBackward,
    Rope,
    SquareSum,
    SwiGlu,
    SwiGluBackward,
}

impl Command for Op {
    fn name(&self) -> &'static str {
        self.name()
    }
    fn accesses(&self, visit: &mut dyn FnMut(Span, Access)) {
        for (tensor, access) in self.operands() {
            visit(tensor.span, access);
        }
    }
    fn work(&self) -> Work {
        self.work()
    }
}
