//! Streams one tensor from its file to its final place, in parallel over fixed chunks.

use crate::convert;
use crate::dir::{ModelDir, Shard};
use crate::dtype::FloatDType;
use crate::error::{self, Error, TensorFault};
use crate::header::Entry;
use megatrain_base::master;
use rayon::prelude::*;
use std::os::unix::fs::FileExt;

/// Elements one task reads at a time; fixed, so that nothing depends on the number of threads. At 4 bytes of file and
/// 4 of scratch an element this is the extra memory of one thread: 2 MiB at most.
const CHUNK_ELEMS: usize = 1 << 18;

impl ModelDir {
    /// Reads a tensor into `out` as f32: exact from each of F32, F16 and BF16.
    ///
    /// `out` must have exactly the tensor's elements, row-major. Values that are not finite are refused, naming the
    /// first. Runs on the current rayon pool; the result does not depend on its size.
    pub fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<(), Error> {
        let source = self.source(name, out.len())?;
        let chunks = out.par_chunks_mut(CHUNK_ELEMS).enumerate();
        source.first_error(chunks.map_init(Vec::new, |bytes, (i, out)| {
            source.read(i * CHUNK_ELEMS, out, bytes)?;
            source.demand(i * CHUNK_ELEMS, out, f32::is_finite, "is not finite")
        }))
    }

    /// Reads a tensor into split masters: `hi` the streamed bf16 bits, `lo` the remainder, see
    /// [`megatrain_base::master`]. From BF16 every `lo` is 0.
    ///
    /// Both must have exactly the tensor's elements. Values that are not finite, or whose bf16 half would not be, are
    /// refused, naming the first.
    pub fn read_split(&self, name: &str, hi: &mut [u16], lo: &mut [u16]) -> Result<(), Error> {
        let source = self.source(name, hi.len())?;
        source.demand_len(lo.len())?;
        let chunks = hi.par_chunks_mut(CHUNK_ELEMS).zip(lo.par_chunks_mut(CHUNK_ELEMS)).enumerate();
        source.first_error(chunks.map_init(<(Vec<f32>, Vec<u8>)>::default, |(values, bytes), (i, (hi, lo))| {
            values.resize(hi.len(), 0.0);
            source.read(i * CHUNK_ELEMS, values, bytes)?;
            let streamable = |value: f32| master::is_streamable(value.to_bits());
            source.demand(i * CHUNK_ELEMS, values, streamable, "is not finite in bf16")?;
            for ((value, hi), lo) in values.iter().zip(hi).zip(lo) {
                (*hi, *lo) = master::split(value.to_bits());
            }
            Ok(())
        }))
    }

    fn source(&self, name: &str, elems: usize) -> Result<Source<'_>, Error> {
        let (shard, entry) = self.locate(name).ok_or_else(|| error::tensor(self.path(), name, TensorFault::Absent))?;
        let Some(dtype) = entry.dtype.float() else {
            return Err(error::tensor(&shard.path, name, TensorFault::NotFloat(entry.dtype)));
        };
        let source = Source { shard, entry, dtype };
        source.demand_len(elems)?;
        Ok(source)
    }
}

/// A float tensor in its file.
struct Source<'a> {
    shard: &'a Shard,
    entry: &'a Entry,
    dtype: FloatDType,
}

impl Source<'_> {
    fn fail(&self, fault: TensorFault) -> Error {
        error::tensor(&self.shard.path, &self.entry.name, fault)
    }

    fn demand_len(&self, given: usize) -> Result<(), Error> {
        let (elems, given) = (self.entry.len_bytes / self.dtype.size_bytes(), given as u64);
        if elems == given { Ok(()) } else { Err(self.fail(TensorFault::Destination { elems, given })) }
    }

    /// Reads `out.len()` elements from element `first` on; `bytes` is scratch.
    fn read(&self, first: usize, out: &mut [f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        let size = self.dtype.size_bytes();
        bytes.resize(out.len() * size as usize, 0);
        let offset = self.entry.offset + first as u64 * size;
        self.shard.file.read_exact_at(bytes, offset).map_err(error::io(&self.shard.path, "reading"))?;
        convert::decode(self.dtype, bytes, out);
        Ok(())
    }

    fn demand(&self, first: usize, values: &[f32], good: impl Fn(f32) -> bool, why: &'static str) -> Result<(), Error> {
        match values.iter().position(|&value| !good(value)) {
            None => Ok(()),
            Some(i) => Err(self.fail(TensorFault::Value { index: (first + i) as u64, value: values[i], why })),
        }
    }

    /// The error of the earliest chunk, so that the message does not depend on timing.
    fn first_error(&self, chunks: impl IndexedParallelIterator<Item = Result<(), Error>>) -> Result<(), Error> {
        let first = chunks.enumerate().filter_map(|(i, r)| r.err().map(|e| (i, e))).min_by_key(|&(i, _)| i);
        first.map_or(Ok(()), |(_, error)| Err(error))
    }
}

/// Whether two tensors of equal length have the same bytes.
pub(crate) fn equal_bytes(a: (&Shard, &Entry), b: (&Shard, &Entry)) -> Result<bool, Error> {
    let mut buffers = (vec![0; CHUNK_ELEMS], vec![0; CHUNK_ELEMS]);
    let mut done = 0;
    while done < a.1.len_bytes {
        let len = (a.1.len_bytes - done).min(CHUNK_ELEMS as u64) as usize;
        read_bytes(a, done, &mut buffers.0[..len])?;
        read_bytes(b, done, &mut buffers.1[..len])?;
        if buffers.0[..len] != buffers.1[..len] {
            return Ok(false);
        }
        done += len as u64;
    }
    Ok(true)
}

/// Reads raw bytes of a tensor, from its byte `from` on.
pub(crate) fn read_bytes((shard, entry): (&Shard, &Entry), from: u64, out: &mut [u8]) -> Result<(), Error> {
    shard.file.read_exact_at(out, entry.offset + from).map_err(error::io(&shard.path, "reading"))
}
