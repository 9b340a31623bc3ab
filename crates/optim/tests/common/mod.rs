//! Small helpers of the optimizer's tests: reproducible numbers, threads, goldens.

#![allow(dead_code, reason = "each test file uses some of these")]

use megatrain_base::{bf16, master};
use safetensors::SafeTensors;

/// A reproducible stream of words (splitmix64, Steele, Lea and Flood 2014).
pub struct Words(pub u64);

impl Words {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1).
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn units(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }
}

/// Runs `work` on a pool of `threads` threads.
pub fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

pub fn halves(w: &[f32]) -> (Vec<u16>, Vec<u16>) {
    w.iter().map(|w| master::split(w.to_bits())).unzip()
}

pub fn joined(hi: &[u16], lo: &[u16]) -> Vec<u32> {
    hi.iter().zip(lo).map(|(&hi, &lo)| master::join(hi, lo)).collect()
}

pub fn to_bf16(x: &[f32]) -> Vec<bf16> {
    x.iter().map(|&x| bf16::from_f32(x)).collect()
}

/// `goldens/optim.safetensors`, made by the script beside it.
pub struct Golden(SafeTensors<'static>);

impl Golden {
    pub fn open() -> Self {
        Golden(SafeTensors::deserialize(include_bytes!("../goldens/optim.safetensors")).unwrap())
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        let data = self.0.tensor(name).unwrap().data();
        data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub fn f64(&self, name: &str) -> Vec<f64> {
        let data = self.0.tensor(name).unwrap().data();
        data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    }
}
