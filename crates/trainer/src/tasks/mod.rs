//! [`StepTasks`]: the host tasks of one run of a program, wired to the optimizer and the batch.
//!
//! One value per run: it carries that step's scalars, so the next step can be issued while this one's updates still run.
//! Large tasks use all threads of the rayon pool they are called in; no result depends on how many there are.

pub mod rows;

use megatrain_base::{DType, Element, Operands, SlabLayout, Tensor, UnitId, bf16};
use megatrain_data::MicroBatch;
use megatrain_optim::{AdamW, Grad, SkipReason, SquareSum, StepScalars, Verdict, Weights, update_slab};
use megatrain_planner::{HostTask, Model};
use megatrain_scheduler::{HostTasks, TaskError};
use rayon::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Elements of one piece of parallel host work: fixed, so that results do not depend on the number of threads.
const CHUNK_ELEMS: usize = 1 << 16;

/// What an optimizer step needs beside its gradients.
#[derive(Clone, Debug)]
pub struct OptimStep {
    /// AdamW's constants.
    pub adamw: AdamW,
    /// Learning rate of this step.
    pub lr: f64,
    /// Largest gradient norm; `None`: no clipping.
    pub max_norm: Option<f64>,
    /// AdamW steps applied so far, shared by all steps of a run; a skipped step does not count.
    pub applied: Arc<AtomicU64>,
}

/// What a run of a program brought.
#[derive(Clone, Debug, Default)]
pub struct StepResult {
    /// Sum of the losses of each micro-batch.
    pub loss_sums: Vec<f64>,
    /// Squares of each unit's gradient.
    pub parts: Vec<SquareSum>,
    /// What became of the step; `None` in programs without updates.
    pub verdict: Option<Verdict>,
    /// Logits of a generation program.
    pub logits: Vec<f32>,
    scalars: Option<StepScalars>,
}

impl StepResult {
    /// A step that computed nothing, since nothing in it is a target.
    pub fn without_targets() -> Self {
        StepResult { verdict: Some(Verdict::Skip(SkipReason::NoTargets)), ..StepResult::default() }
    }

    /// Sum of all losses, micro-batches in order.
    pub fn loss_sum(&self) -> f64 {
        self.loss_sums.iter().sum()
    }

    /// The gradient norm before clipping.
    pub fn grad_norm(&self) -> f64 {
        SquareSum::total(self.parts.iter().copied()).norm()
    }
}

/// The host tasks of one run of a program.
pub struct StepTasks {
    model: Arc<Model>,
    micros: Vec<MicroBatch>,
    targets: u64,
    optim: Option<OptimStep>,
    result: Mutex<StepResult>,
}

impl StepTasks {
    /// Tasks for these micro-batches; `optim` for a training step.
    pub fn new(model: Arc<Model>, micros: Vec<MicroBatch>, optim: Option<OptimStep>) -> Self {
        let result = StepResult {
            loss_sums: vec![0.0; micros.len()],
            parts: vec![SquareSum::default(); model.units.len()],
            ..StepResult::default()
        };
        let targets = micros.iter().map(|m| m.target_count).sum();
        StepTasks { model, micros, targets, optim, result: Mutex::new(result) }
    }

    /// Targets over all micro-batches: the divisor of the loss.
    pub fn targets(&self) -> u64 {
        self.targets
    }

    /// What the run brought; meaningful once its ticket was waited for.
    pub fn result(&self) -> StepResult {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn with_result<R>(&self, change: impl FnOnce(&mut StepResult) -> R) -> R {
        change(&mut self.result.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn layout(&self, unit: UnitId) -> &SlabLayout {
        &self.model.unit(unit).layout
    }

    fn load_inputs(&self, task: &HostTask, operands: &Operands<'_>) -> Result<(), TaskError> {
        let HostTask::LoadInputs { micro, tokens, targets, positions, cu_seqlens, inv_targets } = task else {
            unreachable!("dispatched on the task's kind")
        };
        let batch =
            self.micros.get(*micro as usize).filter(|b| b.tokens.len() == tokens.elems()).ok_or_else(|| {
                TaskError(format!("the step has no micro-batch {micro} of {} tokens", tokens.elems()))
            })?;
        operands.write::<i32>(tokens).copy_from_slice(&batch.tokens);
        operands.write::<i32>(targets).copy_from_slice(&batch.targets);
        operands.write::<i32>(positions).copy_from_slice(&batch.positions);
        operands.write::<i32>(cu_seqlens).copy_from_slice(&batch.cu_seqlens);
        operands.write::<f32>(inv_targets)[0] = (1.0 / self.targets.max(1) as f64) as f32;
        Ok(())
    }

    fn square_sum(
        &self,
        unit: UnitId,
        gradient: &Tensor,
        part: &Tensor,
        operands: &Operands<'_>,
    ) -> Result<SquareSum, TaskError> {
        let sum = SquareSum::of_slab(self.layout(unit), grad(gradient, operands)).map_err(failed)?;
        operands.write::<f64>(part).copy_from_slice(&[sum.sum, sum.nonfinite as f64]);
        self.with_result(|r| r.parts[unit.0 as usize] = sum);
        Ok(sum)
    }

    /// Fixes what the updates of this step do. AdamW's step count moves on only where they are applied.
    fn decide(&self, verdict: Verdict, out: &mut [f64]) -> Result<(), TaskError> {
        let optim = self.optim()?;
        match verdict {
            Verdict::Apply { scale, .. } => {
                let step = optim.applied.fetch_add(1, Ordering::SeqCst) + 1;
                let scalars = StepScalars::new(&optim.adamw, optim.lr, step, scale).map_err(failed)?;
                self.with_result(|r| (r.scalars, r.verdict) = (Some(scalars), Some(verdict)));
                out.copy_from_slice(&[scale, 1.0]);
            }
            Verdict::Skip(_) => {
                self.with_result(|r| r.verdict = Some(verdict));
                out.copy_from_slice(&[0.0, 0.0]);
            }
        }
        Ok(())
    }

    fn optim(&self) -> Result<&OptimStep, TaskError> {
        self.optim.as_ref().ok_or_else(|| TaskError("a training program was run without optimizer settings".into()))
    }

    fn update(&self, task: &HostTask, operands: &Operands<'_>) -> Result<(), TaskError> {
        let HostTask::Update { unit, weights, low, m, v, gradient, verdict, part } = task else {
            unreachable!("dispatched on the task's kind")
        };
        if operands.read::<f64>(verdict)[1] == 0.0 {
            return Ok(());
        }
        if part.elems() > 0 {
            let sum = self.square_sum(*unit, gradient, part, operands)?;
            if sum.nonfinite > 0 {
                return Err(TaskError(format!(
                    "the gradient of unit {} has {} NaN or infinite element(s). Under --update eager other units may \
                     already have been updated: the model is torn at unit {} and must not be used. Restart from the last \
                     saved model with a lower --lr, or with --update after-norm, which skips such a step as a whole",
                    unit.0, sum.nonfinite, unit.0
                )));
            }
        }
        let scalars =
            self.with_result(|r| r.scalars).ok_or_else(|| TaskError("an update ran before its verdict".into()))?;
        let weights = match weights.dtype {
            DType::F32 => Weights::F32(operands.write(weights)),
            _ => Weights::Split { hi: split_hi(operands.write::<bf16>(weights)), lo: operands.write(low) },
        };
        let (m, v) = (operands.write(m), operands.write(v));
        update_slab(self.layout(*unit), &scalars, weights, m, v, grad(gradient, operands)).map_err(failed)
    }
}

impl HostTasks<HostTask> for StepTasks {
    fn run(&self, task: &HostTask, operands: &Operands<'_>) -> Result<(), TaskError> {
        match task {
            HostTask::LoadInputs { .. } => self.load_inputs(task, operands),
            HostTask::GatherEmbedding { tokens, table, rows } => {
                let ids = operands.read::<i32>(tokens);
                match table.dtype {
                    DType::F32 => rows::gather::<f32>(ids, operands.read(table), operands.write(rows)),
                    _ => rows::gather::<bf16>(ids, operands.read(table), operands.write(rows)),
                }
            }
            HostTask::CollectLoss { micro, losses, sum } => {
                let total: f64 = operands.read::<f32>(losses).iter().map(|&x| x as f64).sum();
                operands.write::<f64>(sum)[0] = total;
                self.with_result(|r| r.loss_sums[*micro as usize] = total);
                Ok(())
            }
            HostTask::LossVerdict { sums, verdict } => {
                let total: f64 = operands.read::<f64>(sums).iter().sum();
                let decision = if self.targets == 0 {
                    Verdict::Skip(SkipReason::NoTargets)
                } else if total.is_finite() {
                    Verdict::Apply { scale: 1.0, norm: f64::NAN }
                } else {
                    Verdict::Skip(SkipReason::NonFiniteGradient { count: 0, norm: total })
                };
                self.decide(decision, operands.write(verdict))
            }
            HostTask::AddGradient { landed, sum, first, .. } => {
                let out = operands.write::<f32>(sum);
                match landed.dtype {
                    DType::F32 => add::<f32>(operands.read(landed), out, *first),
                    _ => add::<bf16>(operands.read(landed), out, *first),
                }
                Ok(())
            }
            HostTask::ScatterEmbedding { tokens, rows, table, first } => {
                let (ids, table) = (operands.read::<i32>(tokens), operands.write::<f32>(table));
                match rows.dtype {
                    DType::F32 => rows::scatter::<f32>(ids, operands.read(rows), table, *first),
                    _ => rows::scatter::<bf16>(ids, operands.read(rows), table, *first),
                }
            }
            HostTask::SquareSum { unit, gradient, part } => {
                self.square_sum(*unit, gradient, part, operands).map(|_| ())
            }
            HostTask::Verdict { parts, verdict } => {
                let parts = operands.read::<f64>(parts).chunks_exact(2);
                let total = SquareSum::total(parts.map(|p| SquareSum { sum: p[0], nonfinite: p[1] as u64 }));
                let decision = Verdict::new(total, self.targets, self.optim()?.max_norm).map_err(failed)?;
                self.decide(decision, operands.write(verdict))
            }
            HostTask::Update { .. } => self.update(task, operands),
            HostTask::TakeLogits { logits } => {
                let logits = operands.read::<f32>(logits).to_vec();
                self.with_result(|r| r.logits = logits);
                Ok(())
            }
        }
    }
}

fn failed(error: impl std::fmt::Display) -> TaskError {
    TaskError(error.to_string())
}

fn grad<'a>(gradient: &Tensor, operands: &Operands<'a>) -> Grad<'a> {
    match gradient.dtype {
        DType::F32 => Grad::F32(operands.read(gradient)),
        _ => Grad::Bf16(operands.read(gradient)),
    }
}

/// The upper halves as raw words.
fn split_hi(hi: &mut [bf16]) -> &mut [u16] {
    use half::slice::HalfFloatSliceExt;
    hi.reinterpret_cast_mut()
}

/// `sum += landed`, or `sum = landed` for the first; both of one length.
pub fn add<T: Element>(landed: &[T], sum: &mut [f32], first: bool) {
    sum.par_chunks_mut(CHUNK_ELEMS).zip(landed.par_chunks(CHUNK_ELEMS)).for_each(|(sum, landed)| {
        for (s, x) in sum.iter_mut().zip(landed) {
            *s = if first { x.to_f32() } else { *s + x.to_f32() };
        }
    });
}
