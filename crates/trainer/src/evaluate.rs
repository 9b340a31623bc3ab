//! Evaluation beside training: the loss of data that is not trained on, answers to prompts, which model was the best, and
//! when to stop.

use crate::generate::{Generator, Sampling};
use crate::report::Recorder;
use crate::session::Session;
use crate::setup::StepShape;
use crate::tasks::StepTasks;
use anyhow::{Context, Result, bail};
use megatrain_data::{MicroBatch, Packer, TextTokenizer};
use megatrain_planner::Model;
use std::collections::HashMap;
use std::sync::Arc;

/// Tokens of an answer at most.
const ANSWER_TOKENS: usize = 64;

/// Mean loss of all targets of a data set: the sum of their losses by their number, whatever the batches.
///
/// # Errors
/// The executor's first failure.
pub fn loss(session: &Session, model: &Arc<Model>, shape: StepShape, packer: &Packer) -> Result<f64> {
    let epoch = packer.epoch(0);
    let plan = session.plan();
    let bar = crate::progress::bar(epoch.len() as u64, "evaluating");
    let (mut sum, mut targets, mut programs) = (0.0, 0, HashMap::new());
    let at_a_time = shape.micro_batch_size * plan.group();
    for first in (0..epoch.len()).step_by(at_a_time) {
        let end = (first + at_a_time).min(epoch.len());
        let sequences: Vec<_> = (first..end).map(|i| epoch.sequence(i)).collect();
        let micros = MicroBatch::fill(&sequences, shape.micro_tokens())?;
        // Almost every part has as many: a program is written, and proved where it runs, once.
        let program = match programs.get(&micros.len()) {
            Some(program) => Arc::clone(program),
            None => programs.entry(micros.len()).or_insert(plan.evaluate(micros.len())?).clone(),
        };
        let tasks = StepTasks::new(model.clone(), micros, None);
        targets += tasks.targets();
        sum += session.run(&program, tasks)?.0.loss_sum();
        bar.inc(sequences.len() as u64);
    }
    bar.finish_and_clear();
    Ok(sum / targets as f64)
}

/// The lowest loss so far, and how long ago that was.
#[derive(Clone, Debug, Default)]
pub struct Best {
    /// Its step and loss.
    pub lowest: Option<(u64, f64)>,
    /// Evaluations since.
    pub since: u64,
}

impl Best {
    /// Takes an evaluation into account; whether it is the best so far. A loss that is no number never is.
    pub fn take(&mut self, step: u64, loss: f64) -> bool {
        let improved = self.lowest.map_or(loss.is_finite(), |(_, lowest)| loss < lowest);
        match improved {
            true => *self = Best { lowest: Some((step, loss)), since: 0 },
            false => self.since += 1,
        }
        improved
    }
}

/// A prompt that is answered at each evaluation.
pub struct Prompt {
    /// As it was given.
    pub text: String,
    /// As the model reads it.
    pub tokens: Vec<i32>,
}

/// What happens beside the steps.
pub struct Monitor {
    /// What is evaluated on.
    pub evaluation: Option<Packer>,
    /// What is asked.
    pub prompts: Vec<Prompt>,
    /// Steps between evaluations.
    pub every: Option<u64>,
    /// Evaluations in a row without a lower loss after which the run ends.
    pub patience: Option<u64>,
    /// Text from ids.
    pub tokenizer: Option<Arc<dyn TextTokenizer>>,
    /// Of the evaluations after steps.
    pub best: Best,
    /// Losses of the first evaluation and of the last.
    pub first_and_last: Option<(f64, f64)>,
}

/// What an evaluation says about the run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Verdict {
    /// The loss.
    pub loss: Option<f64>,
    /// Whether this model is the best so far.
    pub improved: bool,
    /// Whether patience is at its end.
    pub stop: bool,
}

impl Monitor {
    /// Whether there is anything to do at an evaluation.
    pub fn is_idle(&self) -> bool {
        self.evaluation.is_none() && self.prompts.is_empty()
    }

    /// Whether an evaluation follows this step.
    pub fn due(&self, step: u64) -> bool {
        step > 0 && !self.is_idle() && self.every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// Evaluates after a step, or before the first (step 0).
    ///
    /// # Errors
    /// The executor's first failure, or a file that cannot be written.
    pub fn run(
        &mut self,
        session: &Session,
        model: &Arc<Model>,
        shape: StepShape,
        step: u64,
        recorder: &mut Recorder,
    ) -> Result<Verdict> {
        let mut verdict = Verdict { loss: None, improved: false, stop: false };
        if let Some(packer) = &self.evaluation {
            let loss = loss(session, model, shape, packer)?;
            recorder.evaluation(step, loss)?;
            say!("eval     step {step}: loss {loss:.4}, perplexity {:.3}", loss.exp());
            let first = self.first_and_last.map_or(loss, |(first, _)| first);
            self.first_and_last = Some((first, loss));
            verdict.loss = Some(loss);
            if step > 0 {
                verdict.improved = self.best.take(step, loss);
                verdict.stop = self.patience.is_some_and(|patience| self.best.since >= patience);
            }
        }
        self.answer(session, model, step, recorder)?;
        Ok(verdict)
    }

    /// Answers the prompts, likeliest tokens only.
    fn answer(&self, session: &Session, model: &Arc<Model>, step: u64, recorder: &mut Recorder) -> Result<()> {
        if self.prompts.is_empty() {
            return Ok(());
        }
        let tokenizer = self.tokenizer.as_deref().context("the model has no tokenizer.json to write answers with")?;
        let mut generator = Generator::over(session, model.clone());
        let bar = crate::progress::bar(self.prompts.len() as u64, "answering prompts");
        for Prompt { text: prompt, tokens } in &self.prompts {
            let room = generator.capacity() - tokens.len();
            let sampling = Sampling { temperature: 0.0, seed: 0 };
            let ids = generator.generate(tokens, room.min(ANSWER_TOKENS), tokenizer.stop_ids(), sampling, |_| {})?;
            let text = tokenizer.decode(&ids)?;
            say!("sample   step {step}: {prompt:?} -> {text:?}");
            recorder.sample(step, prompt, &text)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Refuses prompts that leave no room for an answer.
    ///
    /// # Errors
    /// Names the first.
    pub fn check_prompts(&self, capacity: usize) -> Result<()> {
        for Prompt { text, tokens } in &self.prompts {
            if tokens.len() >= capacity {
                bail!(
                    "--eval-prompts: {text:?} has {} tokens, and with its answer it must fit the {capacity} of a micro-batch; \
                     shorten it or raise --seq-len",
                    tokens.len()
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_lowest_number() {
        let mut best = Best::default();
        let taken: Vec<_> = [f64::NAN, 3.0, 2.0, 2.0, f64::NAN, 2.5, 1.0]
            .into_iter()
            .enumerate()
            .map(|(step, loss)| (best.take(step as u64, loss), best.since))
            .collect();
        assert_eq!(taken, [(false, 1), (true, 0), (true, 0), (false, 1), (false, 2), (false, 3), (true, 0)]);
        assert_eq!(best.lowest, Some((6, 1.0)));
    }
}
