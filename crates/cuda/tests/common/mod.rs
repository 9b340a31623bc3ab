//! A GPU for tests, and cases placed in its memory between guard bytes.

use megatrain_base::RegionId;
use megatrain_cuda::{CudaError, Device, DeviceBuffer, Runner, Scratch, Stream, scratch_bytes};
use megatrain_ops::Op;
use megatrain_ops::harness::Memory;
use std::sync::Arc;

/// Fills what lies around and between operands.
const GUARD: u8 = 0xa5;
/// Fills scratch memory: NaN in every float dtype.
const POISON: u8 = 0xff;
const GUARD_BYTES: u64 = 4096;
const BUFFER_BYTES: u64 = 64 << 20;
const SCRATCH_BYTES: u64 = 64 << 20;

/// The GPU, if there is one.
pub struct Gpu(Arc<Device>);

impl Gpu {
    /// Says why there is none. With MEGATRAIN_GPU_TESTS=required that fails the test.
    pub fn open() -> Option<Gpu> {
        let opened = Device::open(0).and_then(|device| {
            Runner::new(&device, None)?;
            Ok(device)
        });
        match opened {
            Ok(device) => {
                println!("on {}", device.name());
                Some(Gpu(device))
            }
            Err(error) => {
                let required = std::env::var("MEGATRAIN_GPU_TESTS").is_ok_and(|v| v == "required");
                assert!(!required, "{error}");
                println!("skipped: {error}");
                None
            }
        }
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.0
    }

    #[allow(dead_code, reason = "not every test file takes it")]
    pub fn runner(&self) -> Runner {
        Runner::new(&self.0, None).unwrap()
    }
}

/// Device memory for one case at a time.
pub struct Placed {
    buffer: DeviceBuffer,
    scratch: DeviceBuffer,
    stream: Stream,
}

impl Placed {
    pub fn new(gpu: &Gpu) -> Self {
        Placed {
            buffer: DeviceBuffer::new(gpu.device(), BUFFER_BYTES).unwrap(),
            scratch: DeviceBuffer::new(gpu.device(), SCRATCH_BYTES).unwrap(),
            stream: Stream::new(gpu.device()).unwrap(),
        }
    }

    /// Runs an op on the regions of `memory`, twice: the bytes must be the same, those of the guards untouched.
    pub fn run(&mut self, runner: &Runner, op: &Op, memory: &mut Memory) -> Result<(), String> {
        let mut image = vec![GUARD; GUARD_BYTES as usize];
        let mut places: Vec<(RegionId, usize, usize)> = Vec::new();
        let regions: Vec<RegionId> = memory.regions().collect();
        for region in regions {
            let bytes = memory.bytes(region);
            places.push((region, image.len(), bytes.len()));
            image.extend_from_slice(bytes);
            let next = image.len().next_multiple_of(256) + GUARD_BYTES as usize;
            image.resize(next, GUARD);
        }
        assert!(image.len() as u64 <= BUFFER_BYTES, "{} bytes", image.len());
        let addresses: Vec<u64> = op
            .operands()
            .iter()
            .map(|(t, _)| {
                let (_, start, _) = places.iter().find(|(region, ..)| *region == t.span.region).unwrap();
                self.buffer.address() + *start as u64 + t.span.offset_bytes
            })
            .collect();
        let first = self.once(runner, op, &image, &addresses).map_err(|e| e.to_string())?;
        let second = self.once(runner, op, &image, &addresses).map_err(|e| e.to_string())?;
        if let Some(at) = (0..first.len()).find(|&i| first[i] != second[i]) {
            return Err(format!("a second run gives other bits, first at byte {at} of {}", first.len()));
        }
        let mut end = 0;
        for &(region, start, len) in &places {
            if first[end..start].iter().any(|&b| b != GUARD) {
                return Err(format!("bytes before {region} were written on the device"));
            }
            end = start + len;
            memory.bytes_mut(region).copy_from_slice(&first[start..end]);
        }
        if first[end..].iter().any(|&b| b != GUARD) {
            return Err("bytes behind the last operand were written on the device".into());
        }
        Ok(())
    }

    fn once(&mut self, runner: &Runner, op: &Op, image: &[u8], addresses: &[u64]) -> Result<Vec<u8>, CudaError> {
        self.buffer.write(0, image)?;
        let scratch = Scratch { address: self.scratch.address(), len_bytes: scratch_bytes(op) };
        assert!(scratch.len_bytes <= SCRATCH_BYTES);
        self.scratch.fill(POISON)?;
        // SAFETY: operands and scratch memory are this value's own; the harness made the inputs and checked the op.
        unsafe { runner.run(op, addresses, scratch, &self.stream) }?;
        self.stream.synchronize()?;
        let mut out = vec![0; image.len()];
        self.buffer.read(0, &mut out)?;
        Ok(out)
    }
}
