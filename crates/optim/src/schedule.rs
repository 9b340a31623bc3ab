//! Learning-rate schedules: pure functions of the step, so that a resumed run has the rates of one that never stopped.
//!
//! The factors are those of transformers' `get_constant_schedule_with_warmup`, `get_linear_schedule_with_warmup`,
//! `get_cosine_schedule_with_warmup` (with `min_lr_rate`) and `get_wsd_schedule`. As there, **steps are counted from
//! 0** and warm-up starts at 0, so the first step of a run with warm-up has rate 0 (WSD: the least rate).

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The shape of a schedule after warm-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScheduleKind {
    /// Stays at the peak.
    Constant,
    /// Falls on a straight line.
    Linear,
    /// Falls on half a cosine.
    Cosine,
    /// Warm-up, stable, decay: stays at the peak and falls over the last part of the run.
    Wsd,
}

impl ScheduleKind {
    /// All, with the names that [`FromStr`] reads first.
    pub const ALL: [(ScheduleKind, &'static str); 4] = [
        (ScheduleKind::Constant, "constant"),
        (ScheduleKind::Linear, "linear"),
        (ScheduleKind::Cosine, "cosine"),
        (ScheduleKind::Wsd, "wsd"),
    ];

    /// Names used elsewhere for the same schedules.
    const ALIASES: [(ScheduleKind, &'static str); 2] =
        [(ScheduleKind::Constant, "constant_with_warmup"), (ScheduleKind::Wsd, "warmup_stable_decay")];
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ScheduleKind::ALL.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for ScheduleKind {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let wanted = text.trim().to_ascii_lowercase().replace('-', "_");
        let names = || ScheduleKind::ALL.into_iter().chain(ScheduleKind::ALIASES);
        if let Some((kind, _)) = names().find(|(_, name)| *name == wanted) {
            return Ok(kind);
        }
        let nearest = names().map(|(_, name)| (distance(&wanted, name), name)).min();
        // A typo changes a small part of a word; anything further is another word.
        let suggestion = nearest.filter(|(edits, name)| *edits <= name.len().div_ceil(3)).map(|(_, name)| name);
        Err(ScheduleError::Unknown { name: text.to_string(), suggestion })
    }
}

/// Edits (insert, delete, replace one character) between two words: Levenshtein's distance by rows.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let replace = diagonal + (x != y) as usize;
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[row.len() - 1]
}

/// How WSD falls, by the share `x` of the decay that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DecayCurve {
    /// `1 - x`.
    Linear,
    /// `(1 + cos(pi x)) / 2`.
    #[default]
    Cosine,
    /// `1 - sqrt(x)`.
    Sqrt,
}

/// The numbers of a schedule.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ScheduleOptions {
    /// Steps of the whole run, at least 1; later steps have the last rate.
    pub total_steps: u64,
    /// Steps over which the rate rises; at most `total_steps`.
    pub warmup_steps: u64,
    /// The least rate as a share of the peak, in [0, 1]; not used by [`ScheduleKind::Constant`].
    pub min_ratio: f64,
    /// Share of `total_steps` over which [`ScheduleKind::Wsd`] falls, in (0, 1]; rounded to whole steps.
    pub decay_fraction: f64,
    /// How [`ScheduleKind::Wsd`] falls.
    pub curve: DecayCurve,
}

impl ScheduleOptions {
    /// No warm-up, a fall to 0, and for WSD a decay over the last tenth.
    pub fn new(total_steps: u64) -> Self {
        ScheduleOptions {
            total_steps,
            warmup_steps: 0,
            min_ratio: 0.0,
            decay_fraction: 0.1,
            curve: DecayCurve::default(),
        }
    }
}

/// Why a schedule is refused.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum ScheduleError {
    /// No schedule has that name.
    #[error(
        "there is no learning-rate schedule `{name}`{hint}; there are constant, linear, cosine and wsd",
        hint = .suggestion.map_or(String::new(), |s| format!("; did you mean `{s}`?"))
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// The name it is nearly.
        suggestion: Option<&'static str>,
    },
    /// A run of no steps.
    #[error("a schedule needs at least one step in total")]
    NoSteps,
    /// Warm-up does not end within the run.
    #[error("warm-up of {warmup} steps is longer than the run of {total}; shorten the warm-up or lengthen the run")]
    WarmupTooLong {
        /// Steps of warm-up.
        warmup: u64,
        /// Steps of the run.
        total: u64,
    },
    /// Warm-up and decay overlap.
    #[error(
        "warm-up of {warmup} steps and decay of {decay} steps do not fit into the run of {total}; shorten one of them"
    )]
    DecayTooLong {
        /// Steps of warm-up.
        warmup: u64,
        /// Steps of decay.
        decay: u64,
        /// Steps of the run.
        total: u64,
    },
    /// A share is not one.
    #[error("{name} is {value}, but must be {expected}")]
    Share {
        /// The option.
        name: &'static str,
        /// What was given.
        value: f64,
        /// What would be accepted.
        expected: &'static str,
    },
}

/// A learning-rate schedule that was checked.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LrSchedule {
    kind: ScheduleKind,
    options: ScheduleOptions,
    decay_steps: u64,
}

impl LrSchedule {
    /// Makes a schedule.
    ///
    /// # Errors
    /// [`ScheduleError`] says which number is wrong.
    pub fn new(kind: ScheduleKind, options: ScheduleOptions) -> Result<LrSchedule, ScheduleError> {
        let ScheduleOptions { total_steps: total, warmup_steps: warmup, min_ratio, decay_fraction, .. } = options;
        if total == 0 {
            return Err(ScheduleError::NoSteps);
        }
        if warmup > total {
            return Err(ScheduleError::WarmupTooLong { warmup, total });
        }
        if !(0.0..=1.0).contains(&min_ratio) {
            let expected = "at least 0 and at most 1";
            return Err(ScheduleError::Share { name: "the least learning-rate ratio", value: min_ratio, expected });
        }
        if !(decay_fraction > 0.0 && decay_fraction <= 1.0) {
            let expected = "above 0 and at most 1";
            return Err(ScheduleError::Share { name: "the decay fraction", value: decay_fraction, expected });
        }
        let decay_steps = match kind {
            ScheduleKind::Wsd => (decay_fraction * total as f64).round() as u64,
            _ => total - warmup,
        };
        if decay_steps > total - warmup {
            return Err(ScheduleError::DecayTooLong { warmup, decay: decay_steps, total });
        }
        Ok(LrSchedule { kind, options, decay_steps })
    }

    /// The shape.
    pub fn kind(&self) -> ScheduleKind {
        self.kind
    }

    /// The rate of step `step`, **counted from 0**, as a share of the peak.
    pub fn factor(&self, step: u64) -> f64 {
        let ScheduleOptions { total_steps, warmup_steps, min_ratio, curve, .. } = self.options;
        let above_min = |x: f64| x * (1.0 - min_ratio) + min_ratio;
        if step < warmup_steps {
            let rise = step as f64 / warmup_steps as f64;
            // Only WSD starts from the least rate; the others start from 0.
            return if self.kind == ScheduleKind::Wsd { above_min(rise) } else { rise };
        }
        let decay_start = total_steps - self.decay_steps;
        let done = (step.saturating_sub(decay_start) as f64 / self.decay_steps.max(1) as f64).min(1.0);
        let curve = match self.kind {
            ScheduleKind::Constant => return 1.0,
            ScheduleKind::Linear => DecayCurve::Linear,
            ScheduleKind::Cosine => DecayCurve::Cosine,
            ScheduleKind::Wsd => curve,
        };
        above_min(match curve {
            DecayCurve::Linear => 1.0 - done,
            DecayCurve::Cosine => 0.5 * (1.0 + (PI * done).cos()),
            DecayCurve::Sqrt => 1.0 - done.sqrt(),
        })
    }

    /// The rate of step `step`, **counted from 0**, for a peak rate.
    pub fn lr(&self, peak: f64, step: u64) -> f64 {
        peak * self.factor(step)
    }
}
