//! All samples of a data set, one by one, in bounded memory: sources in turn, or mixed by weight.

use super::files::NAMES;
use super::source::{DataSource, Shared, Source, SourceReport};
use crate::cache::KeyBuilder;
use crate::conversation::Sample;
use crate::error::Error;
use crate::random::Random;
use crate::skip::Skips;
use std::path::PathBuf;

/// The stream of [`Random`] that chooses sources; epochs use the numbers from 0 on.
const MIX_STREAM: u64 = u64::MAX - 1;

/// The stream that draws the first source's `num_samples`; later sources use the numbers above it. Far from epochs, which count
/// up from 0, and from the windows of a stream, which count down from below [`MIX_STREAM`].
const DRAW_STREAM: u64 = 1 << 63;

/// How several sources become one, by the names that LLaMA-Factory's `mix_strategy` has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mix {
    /// `concat`: one after the other, each once.
    #[default]
    Concat,
    /// `interleave_under`: drawn by weight until one source has no more; the rest of the others is left out.
    InterleaveUnder,
    /// `interleave_over`: drawn by weight until every source was read to its end; shorter ones are repeated.
    InterleaveOver,
    /// `interleave_once`: drawn by weight, each sample once; a source that has no more drops out.
    InterleaveOnce,
}

impl Mix {
    /// The strategy of that name.
    ///
    /// # Errors
    /// A sentence that lists the names.
    pub fn named(name: &str) -> Result<Mix, String> {
        Ok(match name {
            "concat" => Mix::Concat,
            "interleave_under" => Mix::InterleaveUnder,
            "interleave_over" => Mix::InterleaveOver,
            "interleave_once" => Mix::InterleaveOnce,
            _ => {
                let known = "concat, interleave_under, interleave_over or interleave_once";
                return Err(format!("\"{name}\" is no mixing strategy; there are {known}"));
            }
        })
    }
}

/// How samples are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleOptions {
    /// Whether what is no record at all (invalid JSON, bytes that are not UTF-8, a number for an object, token ids that
    /// do not fit their labels, a record of another format) is an error. Otherwise it is skipped and counted, as single
    /// bad records always are.
    pub strict: bool,
    /// How sources are mixed. None: [`Mix::InterleaveUnder`] where weights are given, else [`Mix::Concat`].
    pub mix: Option<Mix>,
    /// Chooses the order in which sources are drawn.
    pub seed: u64,
}

impl Default for SampleOptions {
    fn default() -> Self {
        SampleOptions { strict: true, mix: None, seed: 0 }
    }
}

/// The samples of a data set. Files are opened when their turn comes, so the first sample is there at once; in memory
/// are one record of each open file and what was skipped.
///
/// After an error there is nothing more.
pub struct Samples {
    sources: Vec<Source>,
    /// Sources still to draw from, with their weights. For [`Mix::Concat`] the first is read.
    live: Vec<(usize, f64)>,
    mix: Mix,
    random: Random,
    shared: Shared,
    total_bytes: u64,
    /// How all of that is read, as a text for a key.
    settings: String,
    ended: bool,
}

impl Samples {
    /// Finds all files; opens none.
    ///
    /// # Errors
    /// There are no sources, a path is no data or named twice, or weights and strategy do not fit.
    pub fn new(sources: &[DataSource], options: &SampleOptions) -> Result<Samples, Error> {
        if sources.is_empty() {
            return Err(Error::Invalid("no data: give --data files or directories".to_owned()));
        }
        let weighted = sources.iter().filter(|source| source.weight.is_some()).count();
        let mix = options.mix.unwrap_or(if weighted > 0 { Mix::InterleaveUnder } else { Mix::Concat });
        if mix == Mix::Concat && weighted > 0 {
            let problem = "weights mix sources, but the strategy is concat; leave them out or choose interleave_under";
            return Err(Error::Invalid(problem.to_owned()));
        }
        if weighted > 0 && weighted < sources.len() {
            let without = sources.iter().find(|source| source.weight.is_none()).expect("some have none");
            let problem = format!("{} has no weight, but others have; give all or none", without.path.display());
            return Err(Error::Invalid(problem));
        }
        let mut shared = Shared::new(options.strict);
        let live: Vec<_> = sources.iter().enumerate().map(|(i, source)| (i, source.weight.unwrap_or(1.0))).collect();
        let mut total_bytes = 0;
        let mut open = Vec::new();
        for (i, source) in sources.iter().enumerate() {
            let first = shared.files.len();
            open.push(Source::new(source, Random::new(options.seed, DRAW_STREAM + i as u64), &mut shared)?);
            let bytes: u64 =
                shared.files[first..].iter().filter_map(|path| path.metadata().ok()).map(|meta| meta.len()).sum();
            // To draw some, all are counted first.
            total_bytes += if source.num_samples.is_some() { 2 * bytes } else { bytes };
        }
        let random = Random::new(options.seed, MIX_STREAM);
        let each: Vec<String> = open.iter().map(Source::settings).collect();
        // One after the other, nothing is drawn.
        let drawn = (mix != Mix::Concat).then_some((mix, options.seed, &live));
        let settings = format!("{each:?} {drawn:?} strict: {}", options.strict);
        Ok(Samples { sources: open, live, mix, random, shared, total_bytes, settings, ended: false })
    }

    /// What lies in the given directories and is no data by its name, in a sentence; None if there is nothing.
    pub fn passed_over(&self) -> Option<String> {
        let files = &self.shared.passed_over;
        let names: Vec<_> = files.iter().take(3).map(|path| path.display().to_string()).collect();
        let more = if files.len() > names.len() { ", ..." } else { "" };
        let count = files.len();
        (count > 0).then(|| format!("{count} file(s) passed over, data files are {NAMES}: {}{more}", names.join(", ")))
    }

    /// All files, in order; what [`Sample::place`] and [`Skip::file`](crate::Skip::file) count.
    pub fn files(&self) -> &[PathBuf] {
        &self.shared.files
    }

    /// The records left out so far.
    pub fn skips(&self) -> &Skips {
        &self.shared.skips
    }

    /// The records left out since the last call, for who keeps them elsewhere.
    pub fn take_skips(&mut self) -> Skips {
        std::mem::take(&mut self.shared.skips)
    }

    /// What was read of each source.
    pub fn reports(&self) -> impl Iterator<Item = &SourceReport> {
        self.sources.iter().map(|source| &source.report)
    }

    /// Bytes of files read so far and in all, as they lie on disk.
    pub fn progress(&self) -> (u64, u64) {
        (self.shared.counter.get().min(self.total_bytes), self.total_bytes)
    }

    /// Adds all that these samples depend on to a key: what their files hold, how they are read and how they are mixed; not
    /// where they are. `progress` hears how many more bytes of the files were read.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn add_to_key(&self, key: &mut KeyBuilder, mut progress: impl FnMut(u64)) -> Result<(), Error> {
        key.text(&self.settings);
        for path in &self.shared.files {
            key.file(path, &mut progress)?;
        }
        Ok(())
    }

    fn next_sample(&mut self) -> Result<Option<Sample>, Error> {
        while !self.live.is_empty() {
            let drawn = self.draw();
            let (source, _) = self.live[drawn];
            let source = &mut self.sources[source];
            if let Some(sample) = source.next_sample(&mut self.shared)? {
                return Ok(Some(sample));
            }
            match self.mix {
                Mix::Concat | Mix::InterleaveOnce => drop(self.live.remove(drawn)),
                Mix::InterleaveUnder => self.live.clear(),
                Mix::InterleaveOver => {
                    source.rewind();
                    if self.sources.iter().all(|source| source.report.passes > 0) {
                        self.live.clear();
                    }
                }
            }
        }
        Ok(None)
    }

    /// Index into `live`.
    fn draw(&mut self) -> usize {
        if self.mix == Mix::Concat || self.live.len() == 1 {
            return 0;
        }
        let total: f64 = self.live.iter().map(|(_, weight)| weight).sum();
        let mut left = self.random.unit() * total;
        for (i, (_, weight)) in self.live.iter().enumerate() {
            left -= weight;
            if left < 0.0 {
                return i;
            }
        }
        self.live.len() - 1
    }
}

impl Iterator for Samples {
    type Item = Result<Sample, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_sample().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
