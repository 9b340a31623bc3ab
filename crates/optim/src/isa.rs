//! [`Isa`]: which instruction set a kernel runs with. A value exists only where the processor has the instructions,
//! which is what makes the dispatch sound.

#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Kernel, Portable};
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// An instruction set that this processor has. All of them give the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa(Level);

impl Isa {
    /// Plain Rust with `f32::mul_add`; runs everywhere.
    pub const PORTABLE: Isa = Isa(Level::Portable);

    /// The fastest one.
    pub fn best() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Isa(Level::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Isa(Level::Avx2);
            }
        }
        Isa::PORTABLE
    }

    /// All that this processor has, fastest last.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "only x86-64 has more than one")]
        let mut all = vec![Isa::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(Isa(Level::Avx2));
            }
            if is_x86_feature_detected!("avx512f") {
                all.push(Isa(Level::Avx512));
            }
        }
        all
    }

    /// Its name: `portable`, `avx2+fma` or `avx512f`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2+fma",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512f",
        }
    }

    /// Runs a kernel with these instructions.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Level::Portable => kernel.run(Portable),
            // SAFETY: `best` and `available`, the only makers of this level, detected avx2 and fma.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { Avx2::detected().run(kernel) },
            // SAFETY: `best` and `available`, the only makers of this level, detected avx512f.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { Avx512::detected().run(kernel) },
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
