//! AdamW beside a plain copy of the same bytes: `cargo run --release --example adamw_speed [MILLION_PARAMS] [ROUNDS]`.
//!
//! Both run on the threads of rayon's pool (`RAYON_NUM_THREADS`) over memory with huge pages asked for, in turns, and
//! the best round of each counts. Two copies: the standard library's, and one that writes past the caches. Bytes a
//! parameter: split masters with bf16 gradients read 2+2+4+4+2 and write 2+2+4+4; fp32 masters with f32 gradients read
//! 4*4 and write 3*4. The copy moves half of that sum from one place to another.

use megatrain_base::bf16;
use megatrain_optim::{AdamW, Grad, Isa, Params, SquareSum, StepScalars, Weights, update};
use rayon::prelude::*;
use std::time::Instant;

/// `len` elements in huge pages where the system gives them, touched by all threads.
fn buffer<T: Send>(len: usize, fill: impl Fn(usize) -> T + Send + Sync) -> Vec<T> {
    let mut out: Vec<T> = Vec::with_capacity(len);
    #[cfg(target_os = "linux")]
    {
        let page = 4096;
        let start = (out.as_ptr() as usize).next_multiple_of(page);
        let bytes = (len * size_of::<T>()).saturating_sub(page) / page * page;
        // SAFETY: the range is page aligned and lies inside the allocation; the advice changes no contents, and its
        // failure only means small pages.
        unsafe { libc::madvise(start as *mut libc::c_void, bytes, libc::MADV_HUGEPAGE) };
    }
    (0..len).into_par_iter().map(fill).collect_into_vec(&mut out);
    out
}

/// Seconds that `work` took.
fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Copies on all threads, in pieces of 1 MiB.
fn copy(from: &[u64], to: &mut [u64], piece: impl Fn(&[u64], &mut [u64]) + Sync) {
    const PIECE: usize = 1 << 17;
    to.par_chunks_mut(PIECE).zip(from.par_chunks(PIECE)).for_each(|(to, from)| piece(from, to));
}

/// A copy that writes past the caches, so that the old contents of the destination are never read.
fn stream(from: &[u64], to: &mut [u64]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        let align = to.as_ptr().align_offset(16).min(to.len());
        to[..align].copy_from_slice(&from[..align]);
        let (from, to) = (&from[align..], &mut to[align..]);
        for (from, to) in from.chunks_exact(2).zip(to.chunks_exact_mut(2)) {
            // SAFETY: SSE2 is part of x86-64; both chunks are 16 bytes, and `to` starts at a multiple of 16.
            unsafe { _mm_stream_si128(to.as_mut_ptr().cast::<__m128i>(), _mm_loadu_si128(from.as_ptr().cast())) };
        }
        if let (Some(last), true) = (to.last_mut(), from.len() % 2 == 1) {
            *last = from[from.len() - 1];
        }
        // SAFETY: part of SSE. Orders the streamed writes before whatever follows.
        unsafe { _mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(from);
}

/// Best seconds of the update and of the two copies.
#[derive(Clone, Copy)]
struct Best {
    update: f64,
    copy: f64,
    stream: f64,
}

/// Runs the update and copies of `words` words in turns, and prints the rates.
fn measure(what: &str, bytes_per_param: usize, rounds: usize, from: &[u64], to: &mut [u64], mut update: impl FnMut()) {
    let mut best = Best { update: f64::INFINITY, copy: f64::INFINITY, stream: f64::INFINITY };
    for _ in 0..rounds {
        best.update = best.update.min(seconds(&mut update));
        best.copy = best.copy.min(seconds(|| copy(from, to, |from, to| to.copy_from_slice(from))));
        best.stream = best.stream.min(seconds(|| copy(from, to, stream)));
    }
    let gigabytes = (from.len() * 16) as f64 / 1e9;
    let params = from.len() * 16 / bytes_per_param;
    println!(
        "{what:<18} {:6.2} GB/s, {:6.3} ns/param; copy {:6.2} GB/s, streaming copy {:6.2} GB/s; \
         share of the faster {:5.1} %",
        gigabytes / best.update,
        best.update * 1e9 / params as f64,
        gigabytes / best.copy,
        gigabytes / best.stream,
        100.0 * best.copy.min(best.stream) / best.update
    );
}

fn main() {
    let argument = |i: usize, default: usize| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let params = argument(1, 64) * 1_000_000;
    let rounds = argument(2, 7);
    println!("{params} parameters, {} threads, best of {rounds} rounds", rayon::current_num_threads());
    let scalars = StepScalars::new(&AdamW::default(), 1e-3, 10, 0.5).expect("these settings are right");

    // A copy of half of (14 read + 12 written) bytes a parameter; the f32 run has 28.
    let from = buffer(params * 14 / 8, |i| i as u64);
    let mut to = buffer(params * 14 / 8, |i| i as u64);
    let mut m = buffer(params, |i| (i % 7) as f32 * 1e-3);
    let mut v = buffer(params, |i| (i % 5) as f32 * 1e-6);

    let mut hi = buffer(params, |_| 0x3f80u16);
    let mut lo = buffer(params, |i| i as u16);
    let g = buffer(params, |i| bf16::from_f32((i % 11) as f32 * 1e-3 - 5e-3));
    for isa in Isa::available().into_iter().rev() {
        let words = params * 13 / 8;
        measure(&format!("split, {isa}"), 26, rounds, &from[..words], &mut to[..words], || {
            let weights = Weights::Split { hi: &mut hi, lo: &mut lo };
            let p = Params { weights, m: &mut m, v: &mut v, g: Grad::Bf16(&g) };
            update(isa, &scalars, true, p).expect("finite");
        });
    }
    let norm = (0..rounds)
        .map(|_| seconds(|| assert_eq!(SquareSum::of(Grad::Bf16(&g)).nonfinite, 0)))
        .fold(f64::INFINITY, f64::min);
    println!("{:<18} {:6.2} GB/s", "norm, bf16", 2e-9 * params as f64 / norm);
    drop((hi, lo, g));

    let mut w = buffer(params, |_| 1.0f32);
    let g = buffer(params, |i| (i % 11) as f32 * 1e-3 - 5e-3);
    for isa in Isa::available().into_iter().rev() {
        measure(&format!("f32, {isa}"), 28, rounds, &from, &mut to, || {
            let p = Params { weights: Weights::F32(&mut w), m: &mut m, v: &mut v, g: Grad::F32(&g) };
            update(isa, &scalars, true, p).expect("finite");
        });
    }
    let norm = (0..rounds)
        .map(|_| seconds(|| assert_eq!(SquareSum::of(Grad::F32(&g)).nonfinite, 0)))
        .fold(f64::INFINITY, f64::min);
    println!("{:<18} {:6.2} GB/s", "norm, f32", 4e-9 * params as f64 / norm);
}
