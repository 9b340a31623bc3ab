//! Times the products of a 7B model's layer, with the heuristic's first choice of algorithm and with the timed one:
//! `cargo run --release -p megatrain-cuda --example time_products [PART OF A NAME]`.
//!
//! Both run by turns on the same operands, medians of launches between events; rates in TFLOP/s. Operands hold random values,
//! or what earlier products made of such. The last line says how long choosing took. Nothing is remembered on disk.

use megatrain_base::DType;
use megatrain_cuda::{CudaError, Device, DeviceBuffer, Event, Origin, Runner, Scratch, Stream, scratch_bytes};
use megatrain_ops::{Matmul, OpSpec, Places};
use std::time::Instant;

const HIDDEN: usize = 3584;
const INTERMEDIATE: usize = 18_944;
const QKV: usize = 4608;
const ROWS: [usize; 3] = [8192, 32_768, 65_536];
const REPEATS: usize = 11;

fn main() -> Result<(), CudaError> {
    let only = std::env::args().nth(1).unwrap_or_default();
    let products: Vec<(String, Matmul)> = products().into_iter().filter(|(name, _)| name.contains(&only)).collect();
    let device = Device::open(0)?;
    let [heuristic, timed] = [Runner::with_cache(&device, None, None)?, Runner::with_cache(&device, None, None)?];
    let stream = Stream::new(&device)?;

    let lens = |op: &Matmul| [op.a, op.b, op.c].map(|t| t.span.len_bytes.next_multiple_of(256));
    let len_bytes = products.iter().map(|(_, op)| lens(op).iter().sum()).max().unwrap_or(0);
    let room = DeviceBuffer::new(&device, len_bytes)?;
    let memory = DeviceBuffer::new(&device, products.first().map_or(0, |(_, op)| scratch_bytes(&(*op).into())))?;
    let [area, scratch] = [&room, &memory].map(|b| Scratch { address: b.address(), len_bytes: b.len_bytes() });
    fill(&room)?;
    let addresses = |op: &Matmul| {
        let [a, b, _] = lens(op);
        [room.address(), room.address() + a, room.address() + a + b]
    };

    println!("{} ({} multiprocessors), medians of {REPEATS}", device.name(), device.multiprocessors());
    let (begun, mut choosing_s) = (Instant::now(), 0.0);
    println!("{:<22}{:>7}{:>24}{:>24}{:>10}", "product", "rows", "heuristic us, TFLOP/s", "timed us, TFLOP/s", "gain");
    for (name, op) in &products {
        op.check().unwrap_or_else(|e| panic!("{e}"));
        let addresses = addresses(op);
        let before = Instant::now();
        // SAFETY: both areas are buffers of this function, which issues nothing else meanwhile.
        let prepared = unsafe { timed.prepare(&[(*op, addresses)], area, scratch, &stream, &mut |_, _| ()) }?;
        choosing_s += before.elapsed().as_secs_f64();
        prepared.notes.iter().for_each(|note| println!("{note}"));
        let mut times = [vec![], vec![]];
        let events = [Event::new(&device)?, Event::new(&device)?];
        for repeat in 0..REPEATS + 2 {
            for (runner, times) in [&heuristic, &timed].into_iter().zip(&mut times) {
                events[0].record(&stream)?;
                // SAFETY: operands and scratch memory are buffers of this function.
                unsafe { runner.run(&(*op).into(), &addresses, scratch, &stream) }?;
                events[1].record(&stream)?;
                let us = events[1].since_us(&events[0])?;
                if repeat >= 2 {
                    times.push(us);
                }
            }
        }
        let [first, best] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[REPEATS / 2]
        });
        let rate = |us: f64| op.flops() / us / 1e6;
        println!(
            "{name}{first:>15.1}{:>9.1}{best:>15.1}{:>9.1}{:>9.1}%",
            rate(first),
            rate(best),
            100.0 * (first / best - 1.0)
        );
    }
    let [ours, theirs] = [&timed, &heuristic].map(Runner::choices);
    let same = ours.iter().zip(&theirs).filter(|(a, b)| a.algorithm == b.algorithm).count();
    let all = ours.iter().filter(|choice| choice.origin == Origin::Timed).count();
    println!(
        "{all} choices took {choosing_s:.2} s of {:.1} s; {same} are the heuristic's",
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// For every linear map of a layer, `y = x W^T`, its three products, at every number of rows.
fn products() -> Vec<(String, Matmul)> {
    let mut products = Vec::new();
    let maps = [
        ("qkv", HIDDEN, QKV),
        ("attention out", HIDDEN, HIDDEN),
        ("gate_up", HIDDEN, 2 * INTERMEDIATE),
        ("down", INTERMEDIATE, HIDDEN),
    ];
    for rows in ROWS {
        for (map, inputs, outputs) in maps {
            let mut at = Places::default();
            let x = at.tensor(DType::Bf16, [rows, inputs]);
            let w = at.tensor(DType::Bf16, [outputs, inputs]);
            let y = at.tensor(DType::Bf16, [rows, outputs]);
            let dx = at.tensor(DType::Bf16, [rows, inputs]);
            let dw = at.tensor(DType::F32, [outputs, inputs]);
            let mut push = |kind: &str, a, b, c, transpose_a, transpose_b, accumulate| {
                let op = Matmul { a, b, c, transpose_a, transpose_b, accumulate };
                products.push((format!("{:<22}{rows:>7}", format!("{map} {kind}")), op));
            };
            push("y", x, w, y, false, true, false);
            push("dx", y, w, dx, false, false, false);
            push("dW", y, x, dw, true, false, true);
        }
    }
    products
}

/// Random bf16 values in [-1, 1), repeated after a prime number of them, so that rows differ.
fn fill(buffer: &DeviceBuffer) -> Result<(), CudaError> {
    let mut state = 1u64;
    let uniform = (0..16_777_213).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    });
    let bytes: Vec<u8> = uniform.flat_map(|x| ((x.to_bits() >> 16) as u16).to_ne_bytes()).collect();
    let mut at = 0;
    while at < buffer.len_bytes() {
        let len = (bytes.len() as u64).min(buffer.len_bytes() - at);
        buffer.write(at, &bytes[..len as usize])?;
        at += len;
    }
    Ok(())
}
