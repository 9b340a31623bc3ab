//! What `megatrain train` does without arguments: teaches a small model from random weights to add two-digit numbers, to
//! sort letters and to turn words around, and asks it problems that it has never seen.
//!
//! The data is made here, from a seed. The figure at the end counts exact answers on held-out problems, given by the
//! exported model: a model that only remembers its training data gets none of them right.

use crate::data::{Packing, RunData};
use crate::generate::{Generator, Sampling};
use crate::options::TrainOptions;
use crate::setup::Source;
use crate::train::{self, DataKind};
use anyhow::Result;
use megatrain_data::{ByteTokenizer, Documents, IGNORE, Random, TextTokenizer};
use std::collections::HashSet;

const PRESET: &str = "demo";
const TRAINING_PROBLEMS: usize = 24_000;
const HELD_OUT_PROBLEMS: usize = 150;
const EPOCHS: u64 = 4;
const MAX_ANSWER_TOKENS: usize = 8;

/// A question with its answer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Problem {
    question: String,
    answer: String,
}

/// Whether the options ask for the demonstration: neither model nor data is named.
pub fn is_demo(options: &TrainOptions) -> bool {
    options.model.is_none() && options.preset.is_none() && options.data.is_none() && options.dataset.is_none()
}

/// Runs the demonstration. Options other than model and data are obeyed.
///
/// # Errors
/// As any training run.
pub fn run(options: &TrainOptions) -> Result<()> {
    let seed = options.seed.unwrap_or(0);
    let (training, held_out) = problems(seed);
    say!(
        "demo     a model of 1.6 million parameters learns from {} problems; afterwards it is asked {} others",
        training.len(),
        held_out.len()
    );
    let mut options = options.clone();
    options.epochs.get_or_insert(EPOCHS);
    options.batch_size.get_or_insert(8);
    options.seq_len.get_or_insert(256);
    options.lr.get_or_insert(3e-3);
    options.beta2.get_or_insert(0.98);
    let source = Source::preset(PRESET)?;
    let data = RunData::from_documents(documents(&training)?, Packing::ALL, &options, &source)?;
    let summary = train::train_on(&options, &source, data, DataKind::Own)?;

    let exported = Source::open(&summary.model_dir)?;
    let answers = answer(&exported, &options, &held_out)?;
    let right = answers.iter().zip(&held_out).filter(|(answer, problem)| **answer == problem.answer).count();
    tell!("\nheld-out problems, answered by the model in {}:", summary.model_dir.display());
    for (given, problem) in answers.iter().zip(&held_out).take(9) {
        let verdict =
            if *given == problem.answer { "right".into() } else { format!("wrong, it is {}", problem.answer) };
        tell!("  {}{given}   ({verdict})", problem.question);
    }
    tell!(
        "exactly right: {right} of {} held-out problems ({:.0}%); a model with random weights answers none",
        held_out.len(),
        100.0 * right as f64 / held_out.len() as f64
    );
    tell!("more: cargo xtask generate --model {} --prompt \"27+45=\"", summary.model_dir.display());
    Ok(())
}

/// Training and held-out problems; no question is in both.
fn problems(seed: u64) -> (Vec<Problem>, Vec<Problem>) {
    let mut random = Random::new(seed, 1);
    let mut seen = HashSet::new();
    let mut draw = |count: usize| -> Vec<Problem> {
        let mut drawn = Vec::with_capacity(count);
        while drawn.len() < count {
            let problem = problem(&mut random);
            if seen.insert(problem.question.clone()) {
                drawn.push(problem);
            }
        }
        drawn
    };
    let held_out = draw(HELD_OUT_PROBLEMS);
    (draw(TRAINING_PROBLEMS), held_out)
}

fn problem(random: &mut Random) -> Problem {
    match random.below(3) {
        0 => {
            let (a, b) = (random.below(100), random.below(100));
            Problem { question: format!("{a}+{b}="), answer: (a + b).to_string() }
        }
        kind => {
            let len = 3 + random.below(3);
            let letters: Vec<char> = (0..len).map(|_| (b'a' + random.below(26) as u8) as char).collect();
            let word: String = letters.iter().collect();
            if kind == 1 {
                Problem { question: format!("reverse {word}="), answer: letters.iter().rev().collect() }
            } else {
                let mut sorted = letters;
                sorted.sort_unstable();
                Problem { question: format!("sort {word}="), answer: sorted.into_iter().collect() }
            }
        }
    }
}

/// Problems as documents; only the answer and the end are learnt.
fn documents(problems: &[Problem]) -> Result<Documents> {
    let mut lines = Vec::with_capacity(problems.len());
    for problem in problems {
        let question = ByteTokenizer.encode(&problem.question)?;
        let answer = ByteTokenizer.encode(&problem.answer)?;
        let learnt = || answer.iter().copied().chain([ByteTokenizer::EOS_ID]);
        let labels = question.iter().map(|_| IGNORE).chain(learnt()).collect();
        let tokens = question.iter().copied().chain(learnt()).collect();
        lines.push((tokens, labels));
    }
    Ok(Documents::from_lines("(demo)", lines)?)
}

fn answer(source: &Source, options: &TrainOptions, problems: &[Problem]) -> Result<Vec<String>> {
    let longest = problems.iter().map(|p| p.question.len()).max().unwrap_or(0) + MAX_ANSWER_TOKENS;
    let threads = options.threads.unwrap_or(0);
    let mut generator = Generator::new(
        source,
        longest,
        options.dtype,
        options.device.unwrap_or(crate::options::Device::Auto),
        threads,
    )?;
    let sampling = Sampling { temperature: 0.0, seed: 0 };
    let bar = crate::progress::bar(problems.len() as u64, "answering held-out problems");
    let mut answers = Vec::with_capacity(problems.len());
    for problem in problems {
        let prompt = ByteTokenizer.encode(&problem.question)?;
        let ids = generator.generate(&prompt, MAX_ANSWER_TOKENS, ByteTokenizer.stop_ids(), sampling, |_| {})?;
        answers.push(ByteTokenizer.decode(&ids)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_held_out_question_is_trained_on_and_answers_are_right() {
        let (training, held_out) = problems(3);
        let questions: HashSet<_> = training.iter().map(|p| &p.question).collect();
        assert_eq!(questions.len(), TRAINING_PROBLEMS);
        assert!(held_out.iter().all(|p| !questions.contains(&p.question)));
        for p in training.iter().chain(&held_out) {
            let body = p.question.trim_end_matches('=');
            let want = if let Some((a, b)) = body.split_once('+') {
                (a.parse::<u64>().unwrap() + b.parse::<u64>().unwrap()).to_string()
            } else if let Some(word) = body.strip_prefix("reverse ") {
                word.chars().rev().collect()
            } else {
                let mut letters: Vec<char> = body.strip_prefix("sort ").unwrap().chars().collect();
                letters.sort();
                letters.into_iter().collect()
            };
            assert_eq!(p.answer, want, "{}", p.question);
        }
    }
}
