//! Matrix products by cuBLASLt: f32 throughout for f32 factors (no TF32), f32 accumulation for bf16 ones.
//!
//! cuBLASLt has several algorithms for a product, and its heuristic's first is not always the fastest. [`Gemm::prepare`]
//! times them once for each [`Key`] and remembers the winners on disk. A product that was not prepared takes what is
//! remembered, or else the heuristic's first. Algorithms round differently; so what a key got it keeps.

mod bench;
mod cache;
mod choose;
mod key;
mod problem;

use crate::cublaslt::{Algorithm, CublasLt, check};
use crate::{CudaError, Device, Scratch, Stream, probe};
use bench::Bench;
use cache::{Cache, Entry, Machine};
use key::Key;
use megatrain_base::units::fmt_bytes;
use megatrain_ops::Matmul;
use problem::Problem;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// How a product got its algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It was the fastest of those timed by this process.
    Timed,
    /// It was the fastest in an earlier run on such a GPU with the same cuBLASLt and driver.
    Remembered,
    /// cuBLASLt's heuristic named it first; nothing was timed.
    Heuristic,
}

/// The algorithm of a product. Another algorithm may round differently.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// Sizes, storage, dtypes and alignments, e.g. `m=8192 n=37888 k=3584 a=bf16@256 b^T=bf16@256 c=bf16@256`.
    pub product: String,
    /// cuBLASLt's algorithm, 128 hex digits, meaningful to the same version of the library.
    pub algorithm: String,
    /// Where it comes from.
    pub origin: Origin,
    /// The median time when it was timed, in microseconds.
    pub us: Option<f64>,
}

/// Held while products are timed.
static TURN: Mutex<()> = Mutex::new(());

/// What [`crate::Runner::prepare`] did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Prepared {
    /// Products whose algorithms were timed.
    pub timed: usize,
    /// Products whose algorithm was remembered from an earlier run.
    pub remembered: usize,
    /// Products that take the heuristic's first, since the memory was too small to time them in; each has a note.
    pub untimed: usize,
    /// Sentences for a person: what was not timed, what cannot be remembered, and why.
    pub notes: Vec<String>,
}

/// A product with its algorithm.
struct Plan {
    problem: Problem,
    algorithm: Algorithm,
    origin: Origin,
    us: Option<f64>,
}

struct State {
    plans: HashMap<Key, Plan>,
    cache: Cache,
    /// Not yet told.
    notes: Vec<String>,
}

/// cuBLASLt on one GPU, with the products it has planned.
pub(crate) struct Gemm {
    state: Mutex<State>,
    lt: CublasLt,
}

impl std::fmt::Debug for Gemm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gemm").finish_non_exhaustive()
    }
}

/// The folder where choices are remembered unless told otherwise; `None` if they are not to be.
pub(crate) fn default_cache() -> Option<PathBuf> {
    cache::default_folder()
}

impl Gemm {
    /// `cache` is the folder where choices are remembered, if they are to be.
    ///
    /// # Errors
    /// [`CudaError::NoCublasLt`], [`CudaError::CublasLt`], or what the driver says.
    pub(crate) fn new(device: &Device, cache: Option<&Path>) -> Result<Gemm, CudaError> {
        device.make_current()?;
        let lt = CublasLt::start()?;
        let machine = Machine {
            gpu: device.name().to_owned(),
            capability: device.capability(),
            multiprocessors: device.multiprocessors(),
            cublaslt: lt.version(),
            driver: probe::driver_version()?,
        };
        let (cache, note) = Cache::open(cache, machine);
        let state = State { plans: HashMap::new(), cache, notes: note.into_iter().collect() };
        Ok(Gemm { lt, state: Mutex::new(state) })
    }

    /// Issues a product. `addresses` are those of a, b and c.
    ///
    /// # Errors
    /// [`CudaError::CublasLt`], [`CudaError::Unsupported`].
    ///
    /// # Safety
    /// As for [`crate::Runner::run`].
    pub(crate) unsafe fn run(
        &self,
        op: &Matmul,
        addresses: &[u64],
        scratch: Scratch,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let key = Key::new(op, addresses);
        let mut state = self.state();
        if !state.plans.contains_key(&key) {
            let problem = Problem::new(&self.lt, &key)?;
            let plan = match state.recall(&self.lt, key, problem) {
                Ok(plan) => plan,
                Err(problem) => first_choice(&self.lt, problem)?,
            };
            state.plans.insert(key, plan);
        }
        let plan = &state.plans[&key];
        // SAFETY: the algorithm is the problem's, the problem the key's, the key that of these addresses; the caller answers
        // for the memory.
        let status = unsafe { plan.problem.launch(&self.lt, &plan.algorithm, addresses, scratch, stream) };
        if status == 0 { Ok(()) } else { check(&format!("the product {key}"), status) }
    }

    /// Chooses an algorithm for every product that has none yet: what is remembered, or the fastest here. `products` come
    /// with the addresses of a, b and c, of which only the alignment matters; the operands that are timed lie in `room`.
    /// `progress` is called with how many products have been timed and how many will be; it must not run products.
    ///
    /// # Errors
    /// [`CudaError::CublasLt`], [`CudaError::Unsupported`], or what the driver says.
    ///
    /// # Safety
    /// Until this returns, nobody else may use `room` and `scratch`, which must be memory of this GPU, apart from each other.
    pub(crate) unsafe fn prepare(
        &self,
        device: &Arc<Device>,
        products: &[(Matmul, [u64; 3])],
        room: Scratch,
        scratch: Scratch,
        stream: &Stream,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Prepared, CudaError> {
        device.make_current()?;
        // One runner of a process at a time: timing is not disturbed, and the next one finds what this one chose.
        let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut state = self.state();
        state.cache.refresh();
        let mut prepared = Prepared { notes: std::mem::take(&mut state.notes), ..Prepared::default() };
        let mut unknown: Vec<(Key, Problem)> = Vec::new();
        for (op, addresses) in products {
            let key = Key::new(op, addresses);
            if state.plans.contains_key(&key) || unknown.iter().any(|(other, _)| *other == key) {
                continue;
            }
            match state.recall(&self.lt, key, Problem::new(&self.lt, &key)?) {
                Ok(plan) => {
                    state.plans.insert(key, plan);
                    prepared.remembered += 1;
                }
                Err(problem) => unknown.push((key, problem)),
            }
        }
        if unknown.is_empty() {
            return Ok(prepared);
        }
        let mut bench = Bench::new(&self.lt, device, scratch, stream)?;
        let (total, mut new) = (unknown.len(), Vec::new());
        for (done, (key, problem)) in unknown.into_iter().enumerate() {
            progress(done, total);
            let candidates = problem.candidates(&self.lt)?;
            let best = match bench::places(&key, room) {
                // SAFETY: candidates and places are those of the key; the caller answers for the memory.
                Some(places) => unsafe { bench.best(&key, &problem, &candidates, &places) }?,
                None => None,
            };
            let plan = match best {
                Some((algorithm, us)) => {
                    new.push((key, Entry { algorithm, us }));
                    prepared.timed += 1;
                    Plan { problem, algorithm, origin: Origin::Timed, us: Some(us) }
                }
                None => {
                    prepared.untimed += 1;
                    prepared.notes.push(untimed(&key, room));
                    Plan { problem, algorithm: candidates[0], origin: Origin::Heuristic, us: None }
                }
            };
            state.plans.insert(key, plan);
        }
        progress(total, total);
        prepared.notes.extend(state.cache.remember(&new).err());
        Ok(prepared)
    }

    /// Whether choices are remembered from run to run.
    pub(crate) fn remembers(&self) -> bool {
        self.state().cache.is_kept()
    }

    /// What was chosen so far, in the order of the products' text.
    pub(crate) fn choices(&self) -> Vec<Choice> {
        let choice = |(key, plan): (&Key, &Plan)| Choice {
            product: key.to_string(),
            algorithm: plan.algorithm.hex(),
            origin: plan.origin,
            us: plan.us,
        };
        let mut choices: Vec<Choice> = self.state().plans.iter().map(choice).collect();
        choices.sort_by(|a, b| a.product.cmp(&b.product));
        choices
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// The plan that is remembered for a key, if cuBLASLt still accepts it; otherwise the problem back.
    fn recall(&mut self, lt: &CublasLt, key: Key, problem: Problem) -> Result<Plan, Problem> {
        let Some(&Entry { algorithm, us }) = self.cache.get(&key) else { return Err(problem) };
        if problem.accepts(lt, &algorithm) {
            return Ok(Plan { problem, algorithm, origin: Origin::Remembered, us: Some(us) });
        }
        self.cache.refuse(key);
        Err(problem)
    }
}

/// # Errors
/// As [`Problem::candidates`].
fn first_choice(lt: &CublasLt, problem: Problem) -> Result<Plan, CudaError> {
    let algorithm = problem.candidates(lt)?[0];
    Ok(Plan { problem, algorithm, origin: Origin::Heuristic, us: None })
}

fn untimed(key: &Key, room: Scratch) -> String {
    let what = format!("the product {key} takes cuBLASLt's first choice of algorithm");
    match key.lens_bytes().map(|lens| lens.iter().fold(0u64, |sum, len| sum.saturating_add(*len))) {
        Some(needed) if bench::places(key, room).is_none() => {
            format!(
                "{what}: timing needs {} of device memory, {} are there",
                fmt_bytes(needed),
                fmt_bytes(room.len_bytes)
            )
        }
        _ => format!("{what}: none could be timed"),
    }
}
