//! Intel AMX tiles through inline assembly: detection, tile configuration, and the two inner products of a 32 x 32 block.
//!
//! A *panel* holds 32 rows of one factor, padded with zeros, in steps of 32 along k. A step is one *plane* of bf16 for
//! bf16 factors and three for f32 factors; a plane is two tiles of 16 rows, 1 KiB each. Tiles of the left factor hold
//! `[row][k]`; tiles of the right factor hold pairs of k: `[k / 2][row][k % 2]`, which is what `tdpbf16ps` wants.
//!
//! **f32 by three planes.** An f32 is exactly the sum of three bf16 numbers, `x = x0 + x1 + x2` (24 significant bits are
//! 8 + 8 + 8), with `|x1| <= 2^-8 |x|` and `|x2| <= 2^-16 |x|` by rounding to nearest. Six of the nine plane products
//! are computed; the dropped (1,2), (2,1), (2,2) have varying signs and together at most 2^-23 of `|a b|`. Products of
//! bf16 are exact in f32 and are summed in f32, 16 at a time before they meet the running sum, so results are as accurate
//! as those of a plain f32 loop. Tiles flush subnormals to zero: a factor or plane below 2^-126 counts as zero. A factor
//! that is not finite, or above 3.39e38 (where its first plane is infinite), makes its results non-finite.

use std::arch::asm;
use std::sync::OnceLock;

/// Rows of a panel.
pub(super) const PANEL: usize = 32;
/// k of one step.
pub(super) const STEP: usize = 32;
/// 16-bit words of one tile.
pub(super) const TILE_WORDS: usize = 512;
/// 16-bit words of one plane of one step: two tiles.
pub(super) const PLANE_WORDS: usize = 2 * TILE_WORDS;

/// Whether this machine multiplies bf16 tiles and this process may: AMX-BF16 with the AVX-512 that every such processor
/// has, and Linux's permission to use tile registers, asked for once.
pub(super) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let tiles = {
            let leaf = std::arch::x86_64::__cpuid_count(7, 0).edx;
            leaf >> 22 & 1 == 1 && leaf >> 24 & 1 == 1
        };
        let wanted = super::simd::limit().is_none();
        wanted
            && tiles
            && is_x86_feature_detected!("avx512bf16")
            && super::simd::isa() == super::simd::Isa::Avx512
            && permitted()
    })
}

/// Asks Linux for the tile registers' state component (`arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`; see the
/// kernel's Documentation/arch/x86/xstate.rst). The permission is the process's and stays.
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: this call passes two integers and touches no memory of ours; a kernel without it returns an error.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// The tile registers of this thread, configured as eight tiles of 16 rows x 64 bytes while the value lives.
pub(super) struct Tiles {
    /// Tile registers belong to a thread.
    _not_send: std::marker::PhantomData<*mut ()>,
}

impl Tiles {
    /// Configures the tiles, or `None` where [`available`] is false.
    pub(super) fn new() -> Option<Self> {
        #[repr(C, align(64))]
        struct Config([u8; 64]);
        if !available() {
            return None;
        }
        // Palette 1; per tile: bytes a row (u16 from byte 16 on), rows (from byte 48 on).
        let mut config = Config([0; 64]);
        config.0[0] = 1;
        for tile in 0..8 {
            config.0[16 + 2 * tile] = 64;
            config.0[48 + tile] = 16;
        }
        // SAFETY: the processor has AMX and the process its permission (`available`); `ldtilecfg` reads these 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) config.0.as_ptr(), options(nostack, readonly, preserves_flags)) };
        Some(Tiles { _not_send: std::marker::PhantomData })
    }

    /// `c (+)= a b^T` for one panel pair with one plane a step (bf16 factors). Meanwhile an eighth as many bytes as a panel
    /// has are brought from `ahead` into the second-level cache.
    ///
    /// # Safety
    /// `a` and `b` hold `steps >= 1` steps of one plane; `c` is 32 rows of 32 f32, `c_stride` bytes apart, initialised
    /// if `accumulate`, and nobody else touches it. `ahead` may be any address.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "one per register that the loop keeps")]
    pub(super) unsafe fn product1(
        &self,
        steps: usize,
        a: *const u16,
        b: *const u16,
        c: *mut f32,
        c_stride: usize,
        accumulate: bool,
        ahead: *const u16,
    ) {
        // SAFETY: addresses are in bounds by contract; the tiles are configured while `self` lives; all clobbers named.
        unsafe {
            asm!(
                "test {accumulate:e}, {accumulate:e}",
                "jz 3f",
                "tileloadd tmm0, [{c} + {c_stride}*1]",
                "tileloadd tmm1, [{c} + {c_stride}*1 + 64]",
                "tileloadd tmm2, [{c_low} + {c_stride}*1]",
                "tileloadd tmm3, [{c_low} + {c_stride}*1 + 64]",
                "jmp 2f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{a} + {row}*1]",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tileloadd tmm7, [{b} + {row}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {row}*1 + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht1 [{ahead}]",
                "prefetcht1 [{ahead} + 64]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht1 [{ahead} + 128]",
                "prefetcht1 [{ahead} + 192]",
                "add {ahead}, 256",
                "add {a}, 2048",
                "add {b}, 2048",
                "sub {steps}, 1",
                "jnz 2b",
                "tilestored [{c} + {c_stride}*1], tmm0",
                "tilestored [{c} + {c_stride}*1 + 64], tmm1",
                "tilestored [{c_low} + {c_stride}*1], tmm2",
                "tilestored [{c_low} + {c_stride}*1 + 64], tmm3",
                accumulate = in(reg) u32::from(accumulate),
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                ahead = inout(reg) ahead => _,
                row = in(reg) 64usize,
                steps = inout(reg) steps => _,
                c = in(reg) c,
                c_low = in(reg) c.wrapping_byte_add(16 * c_stride),
                c_stride = in(reg) c_stride,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// [`Tiles::product1`] with three planes a step (f32 factors), see the top of this file. The order of
    /// the six products changes one factor's plane at a time, which makes 14 tile loads of 24.
    ///
    /// # Safety
    /// As [`Tiles::product1`], with three planes a step.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "one per register that the loop keeps")]
    pub(super) unsafe fn product3(
        &self,
        steps: usize,
        a: *const u16,
        b: *const u16,
        c: *mut f32,
        c_stride: usize,
        accumulate: bool,
        ahead: *const u16,
    ) {
        // SAFETY: addresses are in bounds by contract; the tiles are configured while `self` lives; all clobbers named.
        unsafe {
            asm!(
                "test {accumulate:e}, {accumulate:e}",
                "jz 3f",
                "tileloadd tmm0, [{c} + {c_stride}*1]",
                "tileloadd tmm1, [{c} + {c_stride}*1 + 64]",
                "tileloadd tmm2, [{c_low} + {c_stride}*1]",
                "tileloadd tmm3, [{c_low} + {c_stride}*1 + 64]",
                "jmp 2f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                // a2 b0
                "tileloadd tmm4, [{a} + {row}*1 + 4096]",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tileloadd tmm7, [{b} + {row}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {row}*1 + 5120]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht1 [{ahead} + 0]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht1 [{ahead} + 64]",
                // a1 b0
                "tileloadd tmm4, [{a} + {row}*1 + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {row}*1 + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht1 [{ahead} + 128]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht1 [{ahead} + 192]",
                // a1 b1
                "tileloadd tmm6, [{b} + {row}*1 + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {row}*1 + 3072]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht1 [{ahead} + 256]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht1 [{ahead} + 320]",
                // a0 b1
                "tileloadd tmm4, [{a} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {row}*1 + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht1 [{ahead} + 384]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht1 [{ahead} + 448]",
                // a0 b2
                "tileloadd tmm6, [{b} + {row}*1 + 4096]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {row}*1 + 5120]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht1 [{ahead} + 512]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht1 [{ahead} + 576]",
                // a0 b0
                "tileloadd tmm6, [{b} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {row}*1 + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht1 [{ahead} + 640]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht1 [{ahead} + 704]",
                "add {ahead}, 768",
                "add {a}, 6144",
                "add {b}, 6144",
                "sub {steps}, 1",
                "jnz 2b",
                "tilestored [{c} + {c_stride}*1], tmm0",
                "tilestored [{c} + {c_stride}*1 + 64], tmm1",
                "tilestored [{c_low} + {c_stride}*1], tmm2",
                "tilestored [{c_low} + {c_stride}*1 + 64], tmm3",
                accumulate = in(reg) u32::from(accumulate),
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                ahead = inout(reg) ahead => _,
                row = in(reg) 64usize,
                steps = inout(reg) steps => _,
                c = in(reg) c,
                c_low = in(reg) c.wrapping_byte_add(16 * c_stride),
                c_stride = in(reg) c_stride,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: only reached where `new` succeeded, so the instruction exists; nothing in the tiles is needed any more.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}
