//! [`Bench`]: device memory to time products in, and the timing of candidates.

use super::choose;
use super::key::Key;
use super::problem::Problem;
use crate::cublaslt::{Algorithm, CublasLt};
use crate::{CudaError, Device, Event, Scratch, Stream};
use cudarc::driver::result;
use megatrain_base::DType;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Values of the pattern that fills operands: a prime, so that no row length divides it and rows differ.
const PATTERN_ELEMS: usize = 1_048_573;
/// Rounds in which the finalists are timed by turns.
const ROUNDS: usize = 5;
/// Launches between two events take at least about this long, since events and launches cost microseconds themselves.
const MIN_SPAN_US: f64 = 200.0;
const MAX_SPAN_LAUNCHES: usize = 50;
/// No further candidate is tried after this long, nor a further round begun. The heuristic offers its best first.
const STAGE: Duration = Duration::from_millis(250);
/// How long the GPU works before the first timing, so that its clocks are up.
const WARM_UP: Duration = Duration::from_millis(50);

/// Where a key's operands lie in `room`, aligned as the key says and no better. `None`: too little room.
pub(super) fn places(key: &Key, room: Scratch) -> Option<[u64; 3]> {
    let lens = key.lens_bytes()?;
    let end = room.address.checked_add(room.len_bytes)?;
    let (mut next, mut places) = (room.address, [0; 3]);
    for ((place, len), alignment) in places.iter_mut().zip(lens).zip(key.alignments) {
        let off = if alignment < 256 { u64::from(alignment) } else { 0 };
        *place = next.checked_next_multiple_of(256)?.checked_add(off)?;
        next = place.checked_add(len)?;
    }
    (next <= end).then_some(places)
}

/// Times products on one stream, in memory whose contents do not matter.
pub(super) struct Bench<'a> {
    lt: &'a CublasLt,
    scratch: Scratch,
    stream: &'a Stream,
    events: [Event; 2],
    /// Of f32 and of bf16.
    patterns: [Vec<u8>; 2],
    warm: bool,
}

impl<'a> Bench<'a> {
    /// # Errors
    /// What the driver says.
    pub(super) fn new(
        lt: &'a CublasLt,
        device: &Arc<Device>,
        scratch: Scratch,
        stream: &'a Stream,
    ) -> Result<Self, CudaError> {
        let events = [Event::new(device)?, Event::new(device)?];
        Ok(Bench { lt, scratch, stream, events, patterns: [DType::F32, DType::Bf16].map(pattern), warm: false })
    }

    /// The best of the candidates and its median time; `None` if none of them runs.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The candidates must be the problem's, and the problem the key's. `addresses` must be [`places`] of the key in memory
    /// of this GPU that nobody else uses; nobody else may use the scratch memory either.
    pub(super) unsafe fn best(
        &mut self,
        key: &Key,
        problem: &Problem,
        candidates: &[Algorithm],
        addresses: &[u64; 3],
    ) -> Result<Option<(Algorithm, f64)>, CudaError> {
        let lens = key.lens_bytes().unwrap_or_default();
        for (i, dtype) in key.dtypes().into_iter().enumerate().take(if key.accumulate { 3 } else { 2 }) {
            // SAFETY: the operand's place is nobody else's.
            unsafe { self.fill(addresses[i], lens[i], dtype) }?;
        }
        // SAFETY: as promised to this function.
        let launch = |bench: &Self, i: usize| unsafe {
            problem.launch(bench.lt, &candidates[i], addresses, bench.scratch, bench.stream)
        };
        // Microseconds a launch; `None` if it fails.
        let time = |bench: &Self, i: usize, launches: usize| -> Result<Option<f64>, CudaError> {
            let [start, end] = &bench.events;
            start.record(bench.stream)?;
            for _ in 0..launches {
                if launch(bench, i) != 0 {
                    return Ok(None);
                }
            }
            end.record(bench.stream)?;
            Ok(Some(end.since_us(start)? / launches as f64))
        };

        let begun = Instant::now();
        while !self.warm && launch(self, 0) == 0 && begun.elapsed() < WARM_UP {
            self.stream.synchronize()?;
        }
        self.warm = true;

        let begun = Instant::now();
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); candidates.len()];
        let mut launches = vec![1; candidates.len()];
        for i in 0..candidates.len() {
            if i > 0 && begun.elapsed() > STAGE {
                break;
            }
            // The first launch loads the kernel.
            if launch(self, i) != 0 {
                continue;
            }
            let Some(mut us) = time(self, i, 1)? else { continue };
            launches[i] = ((MIN_SPAN_US / us.max(1.0)).ceil() as usize).clamp(1, MAX_SPAN_LAUNCHES);
            if launches[i] > 1 {
                let Some(again) = time(self, i, launches[i])? else { continue };
                us = again;
            }
            times[i].push(us);
        }

        let firsts: Vec<Option<f64>> = times.iter().map(|times| times.first().copied()).collect();
        let finalists = choose::finalists(&firsts);
        let begun = Instant::now();
        for round in 0..ROUNDS {
            if finalists.len() < 2 || (round > 1 && begun.elapsed() > STAGE) {
                break;
            }
            for &i in &finalists {
                times[i].extend(time(self, i, launches[i])?);
            }
        }
        let medians: Vec<(usize, f64)> =
            finalists.into_iter().filter_map(|i| Some((i, choose::median(std::mem::take(&mut times[i]))?))).collect();
        self.stream.synchronize()?;
        Ok(choose::winner(&medians).map(|(i, us)| (candidates[i], us)))
    }

    /// Fills memory with random values in [-1, 1): products of zeros or of equal rows draw less power and run faster.
    ///
    /// # Safety
    /// The range must be memory of this GPU that nobody else uses.
    unsafe fn fill(&self, address: u64, len_bytes: u64, dtype: DType) -> Result<(), CudaError> {
        let what = || CudaError::driver("filling memory to time products in");
        let pattern = &self.patterns[usize::from(dtype == DType::Bf16)];
        let mut filled = len_bytes.min(pattern.len() as u64);
        // SAFETY: the target is within the range; pageable memory has been read when the call returns.
        unsafe { result::memcpy_htod_async(address, &pattern[..filled as usize], self.stream.raw()) }.map_err(what())?;
        while filled < len_bytes {
            let len = filled.min(len_bytes - filled);
            // SAFETY: source and target are within the range and do not overlap.
            unsafe { result::memcpy_dtod_async(address + filled, address, len as usize, self.stream.raw()) }
                .map_err(what())?;
            filled += len;
        }
        Ok(())
    }
}

/// Bytes of uniform values in [-1, 1).
fn pattern(dtype: DType) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let uniform = (0..PATTERN_ELEMS).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    });
    match dtype {
        // Truncated, which is as good as any rounding here.
        DType::Bf16 => uniform.flat_map(|x| ((x.to_bits() >> 16) as u16).to_ne_bytes()).collect(),
        _ => uniform.flat_map(f32::to_ne_bytes).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_lie_apart_inside_the_room_with_the_alignment_asked_for_and_no_better() {
        for alignments in [[256, 256, 256], [2, 16, 128], [64, 2, 4], [8, 256, 32]] {
            let [a, b, c] = alignments;
            let key = Key::parse(&format!("m=33 n=65 k=17 a=bf16@{a} b^T=bf16@{b} c+=f32@{c}")).unwrap();
            let lens = key.lens_bytes().unwrap();
            let room = |len_bytes| Scratch { address: 0x7f00_0000_0310, len_bytes };
            let all = places(&key, room(1 << 20)).unwrap();
            let mut end = room(0).address;
            for i in 0..3 {
                assert!(all[i] >= end, "{all:x?}");
                assert_eq!(1 << all[i].trailing_zeros().min(8), alignments[i], "{all:x?}");
                end = all[i] + lens[i];
            }
            let needed = end - room(0).address;
            assert_eq!(places(&key, room(needed)), Some(all));
            assert_eq!(places(&key, room(needed - 1)), None);
        }
        let huge = Key::parse("m=4294967296 n=4294967296 k=1 a=f32@4 b=f32@4 c=f32@4").unwrap();
        assert_eq!(places(&huge, Scratch { address: 256, len_bytes: u64::MAX - 256 }), None);
    }

    #[test]
    fn patterns_are_moderate_values_about_zero_that_differ() {
        for dtype in [DType::F32, DType::Bf16] {
            let bytes = pattern(dtype);
            assert_eq!(bytes.len() as u64, PATTERN_ELEMS as u64 * dtype.size_bytes());
            let values: Vec<f32> = match dtype {
                DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect(),
                _ => bytes
                    .chunks_exact(2)
                    .map(|b| f32::from_bits(u32::from(u16::from_ne_bytes([b[0], b[1]])) << 16))
                    .collect(),
            };
            let n = values.len() as f64;
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            let square = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
            // Of a uniform distribution: 0 and 1/3, each within five standard deviations; truncation takes up to 1/128.
            assert!(mean.abs() < 0.003 && (square - 1.0 / 3.0).abs() < 0.006, "{mean} {square}");
            assert!(values.iter().all(|x| x.abs() <= 1.0) && values[..1000] != values[1000..2000]);
        }
    }
}
