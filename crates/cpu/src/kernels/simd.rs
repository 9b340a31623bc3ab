//! Run-time choice of the vector width: [`simd!`] compiles a plain loop three times (AVX-512, AVX2, whatever the target
//! has) and calls the widest that the machine runs. The loops themselves are ordinary Rust without fused multiply-adds
//! and with sums over a fixed number of lanes, so that every version gives the same bits.

use std::sync::OnceLock;

/// Widest instruction set found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has run-time choices"))]
pub(super) enum Isa {
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX2.
    Avx2,
    /// What the crate was compiled for.
    Baseline,
}

/// What this machine runs, or less where the environment variable `MEGATRAIN_ISA` says so (`avx512`, `avx2` or
/// `baseline`; any of them also turns AMX off): for tests and for comparing machines.
pub(super) fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        let found = detect();
        match limit().as_deref() {
            None | Some("avx512") => found,
            Some("avx2") if found == Isa::Avx512 => Isa::Avx2,
            Some("avx2") => found,
            Some("baseline") => Isa::Baseline,
            Some(other) => panic!("MEGATRAIN_ISA is `{other}`; set it to avx512, avx2 or baseline, or leave it unset"),
        }
    })
}

/// The limit set by the environment.
pub(super) fn limit() -> Option<String> {
    std::env::var("MEGATRAIN_ISA").ok()
}

fn detect() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            return Isa::Avx512;
        }
        if is_x86_feature_detected!("avx2") {
            return Isa::Avx2;
        }
    }
    Isa::Baseline
}

/// Defines a function whose body is compiled for each instruction set and chosen at run time. Everything the body calls
/// must be `#[inline(always)]` to be compiled along with it.
macro_rules! simd {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $([$($g:ident: $bound:path),*])? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "one argument per operand")]
        $vis fn $name $(<$($g: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "one argument per operand")]
            fn body $(<$($g: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
                #[allow(clippy::too_many_arguments, reason = "one argument per operand")]
                fn avx512 $(<$($g: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx2")]
                #[allow(clippy::too_many_arguments, reason = "one argument per operand")]
                fn avx2 $(<$($g: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                match $crate::kernels::simd::isa() {
                    // SAFETY: `isa` found these features on this machine.
                    $crate::kernels::simd::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::kernels::simd::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::kernels::simd::Isa::Baseline => {}
                }
            }
            #[allow(unreachable_code, reason = "not reached where every version returned")]
            body($($arg),*)
        }
    };
}
pub(super) use simd;
