//! The host tasks that are timed: what of them lies where, and how the cores do beside the link.

use super::stage::{COPY_BYTES, D2H, DEVICE, DOWN, H2D, Places, Stage, TASKS, UP, UPDATE};
use anyhow::{Context, Result};
use megatrain_base::{Command, DType, Span, Tensor, UnitId};
use megatrain_layers::ModelConfig;
use megatrain_ops::Op;
use megatrain_planner::{HostTask, Model};
use megatrain_scheduler::{Builder, TaskRate};
use std::sync::Arc;
use std::time::Instant;

/// Tokens of a step.
const TOKENS: usize = 16_384;

/// The unit that is updated: a block.
const UNIT: UnitId = UnitId(1);

/// Operands of every host task.
#[derive(Debug)]
pub struct Tasks {
    /// Whose block is updated.
    pub model: Arc<Model>,
    /// Bytes of all operands.
    pub bytes: u64,
    /// What must not be random: moments, for a first moment without a second makes weights infinite where a gradient is zero;
    /// lower halves, which do not go with any upper half; and cells.
    pub zeros: Vec<Span>,
    tokens: Tensor,
    rows: Tensor,
    vocab: usize,
    verdict: HostTask,
    small: HostTask,
    timed: Vec<HostTask>,
}

impl Tasks {
    /// For a block of 61 million parameters and a table of 262 million.
    ///
    /// # Errors
    /// None, as long as the preset exists.
    pub fn new(dtype: DType) -> Result<Tasks> {
        let config = ModelConfig::preset("llama-3.2-1b").context("internal error: a preset is missing")?;
        let model = Model::new(&config);
        let elems = model.unit(UNIT).layout.len_elems();
        let mut at = Places::new(TASKS);
        let f32 = DType::F32;
        let tokens = at.tensor(DType::I32, [TOKENS]);
        let weights = at.tensor(dtype, [elems]);
        let low = at.tensor(DType::U16, [if dtype == f32 { 0 } else { elems }]);
        let (m, v) = (at.tensor(f32, [elems]), at.tensor(f32, [elems]));
        let (gradient, sum) = (at.tensor(dtype, [elems]), at.tensor(f32, [elems]));
        let table = at.tensor(dtype, [config.vocab, config.hidden]);
        let rows = at.tensor(dtype, [TOKENS, config.hidden]);
        let table_gradient = at.tensor(f32, [config.vocab, config.hidden]);
        let parts = at.tensor(DType::F64, [model.units.len(), 2]);
        let (part, verdict) = (at.tensor(DType::F64, [2usize]), at.tensor(DType::F64, [2usize]));
        let (losses, loss_sum) = (at.tensor(f32, [64usize]), at.tensor(DType::F64, [1usize]));
        let no_part = part.rows(0, 0);
        let timed = vec![
            HostTask::Update { unit: UNIT, weights, low, m, v, gradient, verdict, part: no_part },
            HostTask::SquareSum { unit: UNIT, gradient, part },
            HostTask::AddGradient { unit: UNIT, landed: gradient, sum, first: false },
            HostTask::GatherEmbedding { tokens, table, rows },
            HostTask::ScatterEmbedding { tokens, rows, table: table_gradient, first: true },
        ];
        Ok(Tasks {
            bytes: at.end_bytes,
            zeros: vec![low.span, m.span, v.span, parts.span, part.span, verdict.span],
            vocab: config.vocab,
            model: Arc::new(model),
            tokens,
            rows,
            verdict: HostTask::Verdict { parts, verdict },
            small: HostTask::CollectLoss { micro: 0, losses, sum: loss_sum },
            timed,
        })
    }

    /// A task that does next to nothing, and the bytes that it reads and writes.
    pub fn small(&self) -> (HostTask, Span, Span) {
        let HostTask::CollectLoss { losses, sum, .. } = self.small else { unreachable!("made so above") };
        (self.small, losses.span, sum.span)
    }

    /// Puts token ids in place.
    ///
    /// # Errors
    /// None in a stage of these tasks.
    pub fn prepare(&self, stage: &Stage) -> Result<()> {
        let mut random = megatrain_data::Random::new(7, 0);
        let ids: Vec<i32> = (0..self.rows.shape.dim(0)).map(|_| random.below(self.vocab as u64) as i32).collect();
        stage.write(&self.tokens, &ids)
    }

    /// The rate of every task: its name, how fast it goes alone, and on which share of the cores.
    ///
    /// # Errors
    /// A task that fails.
    pub fn rates(&self, stage: &Stage) -> Result<Vec<(&'static str, TaskRate)>> {
        self.timed.iter().map(|task| Ok((task.name(), self.rate(stage, task, 0.5)?))).collect()
    }

    fn rate(&self, stage: &Stage, task: &HostTask, target_s: f64) -> Result<TaskRate> {
        let run = |count: usize| -> Result<(f64, f64)> {
            let (wall, before) = (Instant::now(), processor_seconds());
            let report = stage.run(task.name(), |b| self.repeat(b, task, count))?;
            let share = (processor_seconds() - before) / wall.elapsed().as_secs_f64() / stage.threads as f64;
            Ok((report.lane_busy_seconds[UPDATE.0 as usize] / count as f64, share))
        };
        let (once, _) = (run(1)?, run(1)?).1;
        let (seconds, share) = run(((target_s / once) as usize).clamp(2, 2000))?;
        let least = 1.0 / stage.threads as f64;
        Ok(TaskRate { gb_s: task.work().bytes / seconds / 1e9, cores: share.clamp(least, 1.0) })
    }

    /// An update needs a verdict; the others do not mind one.
    fn repeat(&self, builder: &mut Builder<Op, HostTask>, task: &HostTask, count: usize) {
        builder.host(UPDATE, self.verdict);
        (0..count).for_each(|_| builder.host(UPDATE, *task));
    }

    /// GB/s of updates, and of the link, while both go on: `ways` 1 for copies up, 2 for both. Each is measured while the
    /// other lasts longer.
    ///
    /// # Errors
    /// A task that fails.
    pub fn beside_link(&self, stage: &Stage, ways: usize, alone: TaskRate, link_gb_s: f64) -> Result<(f64, f64)> {
        let update = self.timed[0];
        let update_s = update.work().bytes / alone.gb_s / 1e9;
        let copy_s = (ways as u64 * COPY_BYTES) as f64 / link_gb_s / 1e9;
        let run = |updates: usize, copies: usize| -> Result<(f64, f64)> {
            let report = stage.run("updates beside copies", |b| {
                self.repeat(b, &update, updates);
                for _ in 0..copies {
                    copy_up(b);
                    if ways == 2 {
                        copy_down(b);
                    }
                }
            })?;
            let busy = |lane: megatrain_scheduler::LaneId| report.lane_busy_seconds[lane.0 as usize];
            let by_cores = updates as f64 * update.work().bytes / busy(UPDATE);
            let link = copies as f64 * (ways as u64 * COPY_BYTES) as f64 / busy(H2D).max(busy(D2H));
            Ok((by_cores / 1e9, link / 1e9))
        };
        let for_s = |target_s: f64, one_s: f64| ((target_s / one_s).ceil() as usize).clamp(1, 2000);
        // Three times as long as the other takes alone, since they slow one another down.
        let (by_cores, _) = run(for_s(0.3, update_s), for_s(0.9, copy_s))?;
        let (_, link) = run(for_s(0.9, update_s), for_s(0.3, copy_s))?;
        Ok((by_cores, link))
    }
}

/// One large copy up.
pub fn copy_up(builder: &mut Builder<Op, HostTask>) {
    builder.copy(H2D, Span::new(UP, 0, COPY_BYTES), Span::new(DEVICE, 0, COPY_BYTES));
}

/// One large copy down.
pub fn copy_down(builder: &mut Builder<Op, HostTask>) {
    builder.copy(D2H, Span::new(DEVICE, COPY_BYTES, COPY_BYTES), Span::new(DOWN, 0, COPY_BYTES));
}

/// Processor time of this process in seconds, all threads; 0 where the system does not say.
fn processor_seconds() -> f64 {
    // Fields 14 and 15 of Linux's /proc/self/stat, in hundredths of a second; the second field may hold spaces, in parentheses.
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_goes_by_while_a_thread_works() {
        let (before, start) = (processor_seconds(), Instant::now());
        while start.elapsed().as_secs_f64() < 0.1 {
            std::hint::spin_loop();
        }
        let spent = processor_seconds() - before;
        assert!(!cfg!(target_os = "linux") || spent > 0.02, "{spent}");
    }
}
