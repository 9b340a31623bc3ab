//! Split fp32 masters: the streamed bf16 weight `hi` and a 16-bit remainder `lo` together are the master's 32 bits.
//!
//! `hi = (M + 0x8000) >> 16` is `M` rounded to bf16, ties away from zero; `lo = M & 0xffff`; back:
//! `M = ((hi - (lo >> 15)) << 16) | lo`, in wrapping arithmetic. Invertible on all 2^32 patterns. The masters whose `hi`
//! would be infinite or worse are refused by [`is_streamable`].

/// Splits master bits into (hi, lo).
#[inline(always)]
pub const fn split(master: u32) -> (u16, u16) {
    ((master.wrapping_add(0x8000) >> 16) as u16, master as u16)
}

/// Joins (hi, lo) back into master bits.
#[inline(always)]
pub const fn join(hi: u16, lo: u16) -> u32 {
    ((hi.wrapping_sub(lo >> 15) as u32) << 16) | lo as u32
}

/// Whether the master is finite and its bf16 half is finite too.
#[inline(always)]
pub const fn is_streamable(master: u32) -> bool {
    master & 0x7fff_ffff < 0x7f7f_8000
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn split_is_invertible_and_rounds_to_nearest_on_every_high_half() {
        for hi in 0..=u16::MAX {
            for lo in [0u16, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let master = ((hi as u32) << 16) | lo as u32;
                let (h, l) = split(master);
                assert_eq!(join(h, l), master);
                if is_streamable(master) {
                    let streamed = bf16::from_bits(h);
                    assert!(streamed.is_finite());
                    if lo != 0x8000 {
                        assert_eq!(streamed.to_bits(), bf16::from_f32(f32::from_bits(master)).to_bits());
                    }
                }
            }
        }
        assert!(
            !is_streamable(0x7f7f_8000)
                && !is_streamable(f32::INFINITY.to_bits())
                && !is_streamable(f32::NAN.to_bits())
        );
        assert!(is_streamable(0x7f7f_7fff) && is_streamable(0xff7f_7fff));
    }
}
