//! [`HostTask`]: the host commands of the planner's programs. What they compute is the trainer's business; what they
//! touch is declared here.

use megatrain_base::{Access, Command, Span, Tensor, UnitId, Work};

/// A task on a host lane.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum HostTask {
    /// Writes a micro-batch into its staging buffers.
    LoadInputs {
        /// Index within the step.
        micro: u32,
        /// `[tokens]` i32
        tokens: Tensor,
        /// `[tokens]` i32, shifted
        targets: Tensor,
        /// `[tokens]` i32
        positions: Tensor,
        /// `[tokens + 1]` i32
        cu_seqlens: Tensor,
        /// `[1]` f32
        inv_targets: Tensor,
    },
    /// `rows[t] = table[tokens[t]]`.
    GatherEmbedding {
        /// `[tokens]` i32
        tokens: Tensor,
        /// `[vocab, hidden]` in the compute dtype
        table: Tensor,
        /// `[tokens, hidden]`
        rows: Tensor,
    },
    /// Sums the losses of a micro-batch in f64, in row order.
    CollectLoss {
        /// Index within the step.
        micro: u32,
        /// `[tokens]` f32
        losses: Tensor,
        /// `[1]` f64
        sum: Tensor,
    },
    /// Decides from the losses alone whether updates may run (eager policy).
    LossVerdict {
        /// `[micro-batches]` f64
        sums: Tensor,
        /// See [`HostTask::Verdict`].
        verdict: Tensor,
    },
    /// `sum (+)= landed`, over a whole slab.
    AddGradient {
        /// The unit.
        unit: UnitId,
        /// `[slab]`, as it travelled
        landed: Tensor,
        /// `[slab]` f32
        sum: Tensor,
        /// Overwrite `sum`.
        first: bool,
    },
    /// Adds the embedding rows' gradients to the table's gradient, token by token in order.
    ScatterEmbedding {
        /// `[tokens]` i32
        tokens: Tensor,
        /// `[tokens, hidden]`
        rows: Tensor,
        /// `[vocab, hidden]` f32
        table: Tensor,
        /// Zero the table first.
        first: bool,
    },
    /// Sum of squares and count of non-finite elements of a unit's gradient.
    SquareSum {
        /// The unit.
        unit: UnitId,
        /// `[slab]`
        gradient: Tensor,
        /// `[2]` f64: sum, count
        part: Tensor,
    },
    /// Decides from all parts whether, and with which factor, updates run (after-norm policy).
    Verdict {
        /// `[units, 2]` f64
        parts: Tensor,
        /// `[2]` f64: factor on the gradients, and 1 to apply or 0 to skip
        verdict: Tensor,
    },
    /// AdamW on one unit.
    Update {
        /// The unit.
        unit: UnitId,
        /// `[slab]`: the f32 master, or its bf16 half
        weights: Tensor,
        /// `[slab]` u16: the other half; empty in f32 mode
        low: Tensor,
        /// `[slab]` f32
        m: Tensor,
        /// `[slab]` f32
        v: Tensor,
        /// `[slab]`
        gradient: Tensor,
        /// `[2]` f64
        verdict: Tensor,
        /// `[2]` f64: written when the policy has no separate [`HostTask::SquareSum`], else empty
        part: Tensor,
    },
    /// Hands logits to whoever samples.
    TakeLogits {
        /// `[1, vocab]` f32
        logits: Tensor,
    },
}

impl HostTask {
    /// Operands with their access.
    pub fn operands(&self) -> Vec<(Tensor, Access)> {
        use Access::{Read, Update, Write};
        let fresh = |first: bool| if first { Write } else { Update };
        match *self {
            HostTask::LoadInputs { tokens, targets, positions, cu_seqlens, inv_targets, .. } => {
                [tokens, targets, positions, cu_seqlens, inv_targets].map(|t| (t, Write)).to_vec()
            }
            HostTask::GatherEmbedding { tokens, table, rows } => vec![(tokens, Read), (table, Read), (rows, Write)],
            HostTask::CollectLoss { losses, sum, .. } => vec![(losses, Read), (sum, Write)],
            HostTask::LossVerdict { sums, verdict } => vec![(sums, Read), (verdict, Write)],
            HostTask::AddGradient { landed, sum, first, .. } => vec![(landed, Read), (sum, fresh(first))],
            HostTask::ScatterEmbedding { tokens, rows, table, first } => {
                vec![(tokens, Read), (rows, Read), (table, fresh(first))]
            }
            HostTask::SquareSum { gradient, part, .. } => vec![(gradient, Read), (part, Write)],
            HostTask::Verdict { parts, verdict } => vec![(parts, Read), (verdict, Write)],
            HostTask::Update { weights, low, m, v, gradient, verdict, part, .. } => vec![
                (weights, Update),
                (low, Update),
                (m, Update),
                (v, Update),
                (gradient, Read),
                (verdict, Read),
                (part, Write),
            ],
            HostTask::TakeLogits { logits } => vec![(logits, Read)],
        }
        .into_iter()
        .filter(|(t, _)| t.span.len_bytes > 0)
        .collect()
    }
}

impl Command for HostTask {
    fn name(&self) -> &'static str {
        match self {
            HostTask::LoadInputs { .. } => "load_inputs",
            HostTask::GatherEmbedding { .. } => "gather_embedding",
            HostTask::CollectLoss { .. } => "collect_loss",
            HostTask::LossVerdict { .. } => "loss_verdict",
            HostTask::AddGradient { .. } => "add_gradient",
            HostTask::ScatterEmbedding { .. } => "scatter_embedding",
            HostTask::SquareSum { .. } => "square_sum",
            HostTask::Verdict { .. } => "verdict",
            HostTask::Update { .. } => "update",
            HostTask::TakeLogits { .. } => "take_logits",
        }
    }

    fn accesses(&self, visit: &mut dyn FnMut(Span, Access)) {
        self.operands().into_iter().for_each(|(t, a)| visit(t.span, a));
    }

    fn work(&self) -> Work {
        let bytes = match self {
            // Only the rows are touched, not the table.
            HostTask::GatherEmbedding { rows, .. } => 2.0 * rows.span.len_bytes as f64,
            HostTask::ScatterEmbedding { rows, table, first, .. } => {
                rows.span.len_bytes as f64
                    + 8.0 * rows.elems() as f64
                    + if *first { table.span.len_bytes as f64 } else { 0.0 }
            }
            _ => self
                .operands()
                .iter()
                .map(|(t, a)| t.span.len_bytes as f64 * if *a == Access::Update { 2.0 } else { 1.0 })
                .sum(),
        };
        Work { flops: 0.0, bytes }
    }
}
