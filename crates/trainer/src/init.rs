//! [`TensorInit`]: the first weights of a tensor, from a seed, on all threads of the current rayon pool.

use crate::normal;
use megatrain_base::master;
use megatrain_data::Random;
use megatrain_layers::Init;
use rayon::prelude::*;

/// Elements that one random stream fills: fixed, so that a seed gives the same model with any number of threads.
const CHUNK_ELEMS: usize = 1 << 14;

/// What a tensor starts with: a function of these fields and the index of the element.
#[derive(Clone, Copy, Debug)]
pub struct TensorInit {
    /// The run's seed.
    pub seed: u64,
    /// Number of the tensor in the model, below 2^32.
    pub tensor: u64,
    /// What its template says.
    pub init: Init,
}

impl TensorInit {
    /// Fills f32 masters.
    pub fn fill_f32(&self, weights: &mut [f32]) {
        weights.par_chunks_mut(CHUNK_ELEMS).enumerate().for_each(|(i, chunk)| self.fill_chunk(i, chunk));
    }

    /// Fills split masters ([`megatrain_base::master`]) with the halves of what [`TensorInit::fill_f32`] gives.
    pub fn fill_split(&self, hi: &mut [u16], lo: &mut [u16]) {
        let halves = hi.par_chunks_mut(CHUNK_ELEMS).zip(lo.par_chunks_mut(CHUNK_ELEMS)).enumerate();
        halves.for_each_init(
            || vec![0.0; CHUNK_ELEMS],
            |masters, (i, (hi, lo))| {
                let masters = &mut masters[..hi.len()];
                self.fill_chunk(i, masters);
                for ((hi, lo), x) in hi.iter_mut().zip(lo).zip(masters) {
                    (*hi, *lo) = master::split(x.to_bits());
                }
            },
        );
    }

    fn fill_chunk(&self, chunk: usize, out: &mut [f32]) {
        match self.init {
            Init::Ones => out.fill(1.0),
            Init::Zeros => out.fill(0.0),
            Init::Normal(std) => normal::fill(Random::new(self.seed, (self.tensor << 32) | chunk as u64), std, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two whole chunks and a part of one.
    const LEN: usize = 2 * CHUNK_ELEMS + 77;

    fn masters(init: TensorInit, threads: usize) -> Vec<u32> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut weights = vec![f32::NAN; LEN];
        pool.install(|| init.fill_f32(&mut weights));
        let (mut hi, mut lo) = (vec![u16::MAX; LEN], vec![u16::MAX; LEN]);
        pool.install(|| init.fill_split(&mut hi, &mut lo));
        let joined: Vec<u32> = hi.into_iter().zip(lo).map(|(hi, lo)| master::join(hi, lo)).collect();
        assert_eq!(joined, weights.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), "the halves of the same numbers");
        joined
    }

    #[test]
    fn weights_depend_on_seed_and_tensor_and_not_on_threads() {
        let init = TensorInit { seed: 1, tensor: 2, init: Init::Normal(0.02) };
        let weights = masters(init, 1);
        assert_eq!(masters(init, 3), weights);
        let others = [TensorInit { seed: 2, ..init }, TensorInit { tensor: 3, ..init }].map(|other| masters(other, 2));
        let chunks = |x: &[u32]| x.chunks(CHUNK_ELEMS).map(<[u32]>::to_vec).collect::<Vec<_>>();
        let mut all: Vec<_> = [&weights, &others[0], &others[1]].into_iter().flat_map(|x| chunks(x)).collect();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "no two chunks are the same");
    }

    #[test]
    fn ones_and_zeros() {
        for (init, value) in [(Init::Ones, 1.0f32), (Init::Zeros, 0.0)] {
            assert_eq!(masters(TensorInit { seed: 0, tensor: 0, init }, 2), vec![value.to_bits(); LEN]);
        }
    }
}
