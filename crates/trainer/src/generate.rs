//! Text from a model: the whole context is computed for every token, through the same streamed programs as training.

use crate::options::{Device, Dtype, TrainOptions};
use crate::session::Session;
use crate::setup::{self, Source};
use crate::target::Target;
use crate::tasks::StepTasks;
use anyhow::{Context, Result, bail};
use megatrain_data::{MicroBatch, Random, Sequence};
use megatrain_planner::{Model, Program, Settings};
use std::borrow::Borrow;
use std::collections::HashMap;
use std::sync::Arc;

/// Programs are made for multiples of this many tokens.
const BUCKET_TOKENS: usize = 32;

/// How to choose the next token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling {
    /// 0 takes the likeliest token; 1 samples from the model's distribution.
    pub temperature: f64,
    /// Seed of the sampling.
    pub seed: u64,
}

/// A model ready to generate, over a session of its own or over one that it borrows.
pub struct Generator<S = Session> {
    session: S,
    model: Arc<Model>,
    programs: HashMap<usize, Arc<Program>>,
    capacity: usize,
}

impl Generator {
    /// Loads a model for contexts of up to `tokens` tokens.
    ///
    /// # Errors
    /// What does not fit or cannot be read.
    pub fn new(source: &Source, tokens: usize, dtype: Option<Dtype>, device: Device, threads: usize) -> Result<Self> {
        let limit = source.model.config.max_positions;
        if tokens > limit {
            bail!(
                "prompt and answer may take {tokens} tokens, more than the model's max_position_embeddings of {limit}; \
                 shorten the prompt or lower --max-tokens"
            );
        }
        source.model.config.check_context(tokens)?;
        let capacity = tokens.next_multiple_of(BUCKET_TOKENS);
        let (target, plan) = Target::choose(device)?.plan(&source.model, |target| {
            let dtype = setup::dtype(dtype, target.gpu().is_some());
            Ok(Settings { train: false, ..Settings::new(dtype, capacity, 1) })
        })?;
        let memory = setup::load(source, plan, target.placement(threads), 0)?;
        let session = target.start(memory, &TrainOptions { threads: Some(threads), ..TrainOptions::default() })?;
        Ok(Generator { session, model: source.model.clone(), programs: HashMap::new(), capacity })
    }
}

impl<S: Borrow<Session>> Generator<S> {
    /// Over a session that may be there for something else, such as training: no other program may run meanwhile.
    pub fn over(session: S, model: Arc<Model>) -> Self {
        let plan = session.borrow().plan();
        let capacity = plan.settings.micro_tokens.min(model.config.max_positions);
        Generator { session, model, programs: HashMap::new(), capacity }
    }

    /// Tokens that prompt and answer may have together.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Continues `prompt` by up to `max_tokens` tokens, or until one of `stop` comes, which is not returned. `on_token`
    /// sees every token as it comes.
    ///
    /// # Errors
    /// An empty prompt, ids outside the vocabulary, too long a context.
    pub fn generate(
        &mut self,
        prompt: &[i32],
        max_tokens: usize,
        stop: &[i32],
        sampling: Sampling,
        mut on_token: impl FnMut(i32),
    ) -> Result<Vec<i32>> {
        if prompt.is_empty() {
            bail!("the prompt has no tokens");
        }
        let vocab = self.model.config.vocab;
        if let Some(id) = prompt.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= vocab)) {
            bail!(
                "token id {id} of the prompt is outside the model's vocabulary of {vocab}; tokenizer.json and config.json \
                 must come from the same model"
            );
        }
        if prompt.len().saturating_add(max_tokens) > self.capacity {
            bail!("{} tokens of prompt and {max_tokens} more do not fit {}", prompt.len(), self.capacity);
        }
        let mut random = Random::new(sampling.seed, 0);
        let mut context = prompt.to_vec();
        for _ in 0..max_tokens {
            let logits = self.logits(&context)?;
            let next = choose(&logits, sampling.temperature, &mut random)?;
            if stop.contains(&next) {
                break;
            }
            on_token(next);
            context.push(next);
        }
        Ok(context.split_off(prompt.len()))
    }

    /// Logits of the token after `context`.
    ///
    /// # Errors
    /// Ids outside the vocabulary, too long a context.
    pub fn logits(&mut self, context: &[i32]) -> Result<Vec<f32>> {
        let tokens = context.len().next_multiple_of(BUCKET_TOKENS).min(self.capacity);
        let session: &Session = self.session.borrow();
        let program = match self.programs.get(&tokens) {
            Some(program) => program.clone(),
            None => {
                let program = session.plan().generate(tokens)?;
                self.programs.insert(tokens, program.clone());
                program
            }
        };
        let sequence = Sequence {
            tokens: context.to_vec(),
            targets: vec![megatrain_data::IGNORE; context.len()],
            doc_lens: vec![context.len() as u32],
        };
        let batch = MicroBatch::assemble(&[sequence], tokens)?;
        let row = session.plan().row_index();
        session.executor().write::<i32>(&row, &[context.len() as i32 - 1])?;
        let tasks = StepTasks::new(self.model.clone(), vec![batch], None);
        let (result, _) = session.run(&program, tasks).context("computing the next token")?;
        Ok(result.logits)
    }
}

/// The likeliest token, or one drawn from `softmax(logits / temperature)`.
fn choose(logits: &[f32], temperature: f64, random: &mut Random) -> Result<i32> {
    if logits.iter().any(|x| !x.is_finite()) {
        bail!("the model's logits are not finite: its weights are damaged");
    }
    let (mut best, mut top) = (0, f32::NEG_INFINITY);
    for (i, &x) in logits.iter().enumerate() {
        if x > top {
            (best, top) = (i, x);
        }
    }
    if temperature == 0.0 {
        return Ok(best as i32);
    }
    let weight = |x: f32| ((x - top) as f64 / temperature).exp();
    let total: f64 = logits.iter().map(|&x| weight(x)).sum();
    let mut at = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
    for (i, &x) in logits.iter().enumerate() {
        at -= weight(x);
        if at < 0.0 {
            return Ok(i as i32);
        }
    }
    Ok(best as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        let logits = [0.0f32, (3.0f32).ln(), f32::MIN];
        let mut random = Random::new(1, 2);
        let mut count = [0; 3];
        for _ in 0..40_000 {
            count[choose(&logits, 1.0, &mut random).unwrap() as usize] += 1;
        }
        // 30,000 expected, standard deviation 87.
        assert!((count[1] - 30_000i32).abs() < 500 && count[2] == 0, "{count:?}");
        assert_eq!(choose(&logits, 0.0, &mut random).unwrap(), 1);
        assert!(choose(&[f32::NAN, 1.0], 0.0, &mut random).is_err());
    }
}
