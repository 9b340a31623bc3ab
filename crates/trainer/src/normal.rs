//! Normal numbers for random weights: by Box and Muller's transform, in f32 and a few nanoseconds each.
//!
//! Only additions, multiplications, divisions and square roots, each correctly rounded: a seed gives the same weights on
//! every machine, whatever its C library. Two numbers take 64 random bits:
//!
//! ```text
//! radius = sqrt(-2 ln u)                            u: 24 bits, a multiple of 2^-24 in (0, 1]
//! (x, y) = radius * (cos a, sin a)                  a: 24 bits, in the middle of equal parts of (-pi/4, pi/4)
//! swap x and y; negate both                         1 bit each: the wedge becomes the whole circle
//! ```
//!
//! The radius ends at `sqrt(-2 ln 2^-24)` = 5.77 standard deviations, which normal numbers exceed once in 130 million.
//! Source: Box and Muller, "A note on the generation of random normal deviates", 1958.

use megatrain_data::Random;
use std::f32::consts::{FRAC_PI_2, LN_2, SQRT_2};

/// Pairs made at a time: enough for the compiler to use vectors.
const PAIRS: usize = 32;

/// Fills `out` with numbers of mean 0 and standard deviation `std`.
pub fn fill(mut random: Random, std: f32, out: &mut [f32]) {
    let (mut radius_bits, mut angle_bits) = ([0u32; PAIRS], [0u32; PAIRS]);
    let mut numbers = [0f32; 2 * PAIRS];
    for block in out.chunks_mut(2 * PAIRS) {
        for (radius, angle) in radius_bits.iter_mut().zip(&mut angle_bits) {
            let bits = random.next_u64();
            (*radius, *angle) = ((bits >> 32) as u32, bits as u32);
        }
        let (xs, ys) = numbers.split_at_mut(PAIRS);
        for (i, (x, y)) in xs.iter_mut().zip(ys).enumerate() {
            (*x, *y) = pair(radius_bits[i], angle_bits[i], std);
        }
        block.copy_from_slice(&numbers[..block.len()]);
    }
}

/// Two numbers from the upper 24 bits of `radius`, the upper 24 of `angle` and its lowest two.
#[inline(always)]
fn pair(radius: u32, angle: u32, std: f32) -> (f32, f32) {
    // Through i32, since x86-64 converts only signed integers four at a time.
    let u = ((radius >> 8) + 1) as i32 as f32 * (1.0 / (1 << 24) as f32);
    let radius = (-2.0 * ln(u)).sqrt() * std;
    // Exact up to the product: 24 bits around 0 and a half.
    let a = ((angle >> 8) as i32 as f32 - ((1 << 23) as f32 - 0.5)) * (FRAC_PI_2 / (1 << 24) as f32);
    let (x, y) = (radius * cos(a), radius * sin(a));
    let (x, y) = if angle & 1 == 0 { (x, y) } else { (y, x) };
    let sign = (angle & 2) << 30;
    (f32::from_bits(x.to_bits() ^ sign), f32::from_bits(y.to_bits() ^ sign))
}

/// Natural logarithm of a normal number above 0: `u = m 2^e` with m around 1, and `ln m = 2 artanh s` with
/// `s = (m - 1) / (m + 1)`, by its series; |s| < 0.172, so what is left out is below 3e-8 of `ln m`.
#[inline(always)]
fn ln(u: f32) -> f32 {
    // Bits above those of 1 / sqrt(2): the exponent field of the difference is e, also where it is negative.
    let above = u.to_bits().wrapping_sub((SQRT_2 / 2.0).to_bits()) as i32;
    let e = above >> 23;
    let m = f32::from_bits(u.to_bits().wrapping_sub((e << 23) as u32));
    let s = (m - 1.0) / (m + 1.0);
    let s2 = s * s;
    e as f32 * LN_2 + 2.0 * s * (1.0 + s2 * (1.0 / 3.0 + s2 * (1.0 / 5.0 + s2 * (1.0 / 7.0))))
}

/// Sine for |a| <= pi/4 by Taylor's series: what is left out is below 2e-9.
#[inline(always)]
fn sin(a: f32) -> f32 {
    let a2 = a * a;
    a * (1.0 - a2 * (1.0 / 6.0 - a2 * (1.0 / 120.0 - a2 * (1.0 / 5040.0 - a2 * (1.0 / 362_880.0)))))
}

/// Cosine for |a| <= pi/4 by Taylor's series: what is left out is below 3e-8.
#[inline(always)]
fn cos(a: f32) -> f32 {
    let a2 = a * a;
    1.0 - a2 * (1.0 / 2.0 - a2 * (1.0 / 24.0 - a2 * (1.0 / 720.0 - a2 * (1.0 / 40_320.0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seed: u64, len: usize, std: f32) -> Vec<f32> {
        let mut out = vec![f32::NAN; len];
        fill(Random::new(seed, 0), std, &mut out);
        out
    }

    /// The transform in f64, from the same bits. Each function here is off by less than 4 units of f32's last place of
    /// its largest value (its series, and some roundings of 2^-24), and the radius reaches 5.77.
    #[test]
    fn pairs_are_those_of_exact_functions() {
        let mut random = Random::new(1, 2);
        let ends = [0, 0xff, 0x100, 0x1ff, u32::MAX - 0x100, u32::MAX];
        let corners = ends.into_iter().flat_map(|r| ends.into_iter().map(move |a| (r, a)));
        let drawn: Vec<_> = (0..200_000).map(|_| random.next_u64()).map(|b| ((b >> 32) as u32, b as u32)).collect();
        for (radius, angle) in corners.chain(drawn) {
            let (x, y) = pair(radius, angle, 1.0);
            let r = (-2.0 * (((radius >> 8) as f64 + 1.0) / (1 << 24) as f64).ln()).sqrt();
            let a = ((angle >> 8) as f64 + 0.5 - (1 << 23) as f64) / (1 << 24) as f64 * std::f64::consts::FRAC_PI_2;
            let sign = if angle & 2 == 0 { r } else { -r };
            let (mut ex, mut ey) = (sign * a.cos(), sign * a.sin());
            if angle & 1 == 1 {
                (ex, ey) = (ey, ex);
            }
            let bound = 8.0 * r.max(f32::MIN_POSITIVE as f64) * f32::EPSILON as f64 / 2.0;
            let error = (x as f64 - ex).abs().max((y as f64 - ey).abs());
            assert!(error <= bound, "{radius:#x} {angle:#x}: ({x}, {y}), exactly ({ex}, {ey})");
        }
    }

    /// Every bound is five standard errors of what `N` independent normal numbers give.
    #[test]
    fn numbers_are_normal_and_independent() {
        const N: usize = 1 << 20;
        let x: Vec<f64> = numbers(3, N, 1.0).into_iter().map(f64::from).collect();
        let n = N as f64;
        let mean = |f: &dyn Fn(f64) -> f64| x.iter().map(|&x| f(x)).sum::<f64>() / n;
        // Moments 1 to 4 are 0, 1, 0, 3; their variances are those of moments 2, 4, 6, 8: 1, 2, 15, 96.
        for (power, expected, variance) in [(1, 0.0, 1.0f64), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
            let moment = mean(&|x| x.powi(power));
            assert!((moment - expected).abs() < 5.0 * (variance / n).sqrt(), "moment {power}: {moment}");
        }
        // Values of the normal distribution function, from tables.
        for (at, below) in [
            (-3.0, 0.001_349_9),
            (-2.0, 0.022_750_1),
            (-1.0, 0.158_655_3),
            (-0.5, 0.308_537_5),
            (0.0, 0.5),
            (0.25, 0.598_706_3),
            (1.5, 0.933_192_8),
            (2.5, 0.993_790_3),
            (4.0, 0.999_968_3),
        ] {
            let share = mean(&|x| f64::from(x < at));
            let error = (below * (1.0 - below) / n).sqrt();
            assert!((share - below).abs() < 5.0 * error, "below {at}: {share}");
        }
        // Neighbours, both halves of a pair, and neighbouring streams.
        let mut other = vec![0.0; N];
        fill(Random::new(3, 1), 1.0, &mut other);
        for lag in [1, 2, PAIRS, 2 * PAIRS] {
            let together = x.iter().zip(&x[lag..]).map(|(a, b)| a * b).sum::<f64>() / (n - lag as f64);
            assert!(together.abs() < 5.0 / n.sqrt(), "lag {lag}: {together}");
        }
        let together = x.iter().zip(&other).map(|(&a, &b)| a * f64::from(b)).sum::<f64>() / n;
        assert!(together.abs() < 5.0 / n.sqrt(), "streams: {together}");
    }

    #[test]
    fn a_shorter_run_is_a_prefix_and_the_deviation_a_factor() {
        let long = numbers(5, 1000, 1.0);
        for len in [0, 1, 2, 31, 33, 63, 64, 65, 999] {
            assert_eq!(numbers(5, len, 1.0), long[..len]);
        }
        let scaled: Vec<f32> = long.iter().map(|x| x * 0.25).collect();
        assert_eq!(numbers(5, 1000, 0.25), scaled);
        assert_ne!(numbers(6, 1000, 1.0), long);
    }

    /// So that a seed means the same model on every machine and tomorrow.
    #[test]
    fn the_numbers_are_part_of_the_contract() {
        let bits: Vec<u32> = numbers(0, 4, 0.02).into_iter().map(f32::to_bits).collect();
        assert_eq!(bits, [966_557_735, 1_020_256_767, 3_075_014_576, 1_000_260_205]);
    }
}
