//! `megatrain data preview`: what exactly would be trained on, for a person's eyes or for a program.

use super::{Data, DataReport, Packing, Reader, describe_packing, say_passed_over, training_packer, training_sources};
use crate::options::TrainOptions;
use crate::report::DataFacts;
use crate::setup::{Source, StepShape};
use anyhow::Result;
use megatrain_data::{Document, Documents, IGNORE, Packer, TextTokenizer};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::ops::Range;

/// How much is shown, and how.
#[derive(Clone, Copy, Debug)]
pub struct Preview {
    /// One object a document instead of text.
    pub json: bool,
    /// Sequences shown, or documents written.
    pub limit: Option<usize>,
}

/// A document for other programs.
#[derive(Serialize)]
struct Line<'a> {
    input_ids: &'a [i32],
    labels: &'a [i32],
}

/// Sequences shown where nothing else is asked for.
const SHOWN: usize = 3;

/// Skipped records listed one by one.
const LISTED_SKIPS: usize = 20;

impl Preview {
    /// Reads the data as training would, and shows it on stdout; statistics go to stderr beside JSON.
    ///
    /// # Errors
    /// As training: data of which nothing would be learnt, too.
    pub fn run(&self, options: &TrainOptions, source: &Source) -> Result<()> {
        super::check(options)?;
        if options.streaming == Some(true) {
            say!(
                "note     this is all of the data, read whole; --streaming shuffles and packs it in windows of --buffer-size"
            );
        }
        let shape = StepShape::new(options, &source.model.config)?;
        let reader = Reader::new(options, source, shape.seq_len)?;
        let sources = training_sources(options)?;
        say_passed_over(&reader.samples(&sources)?);
        let Data { documents, report } = reader.read(&sources, "reading data")?;
        let packing = Packing::new(options, report.pretokenized > 0);
        if self.json {
            for document in documents.iter().take(self.limit.unwrap_or(usize::MAX)) {
                let labels = document.labels.unwrap_or(document.tokens);
                let line = Line { input_ids: document.tokens, labels };
                tell!("{}", serde_json::to_string(&line)?);
            }
        }
        let packer = training_packer(documents, options, shape, packing)?;
        if !self.json && source.tokenizer.is_none() {
            tell!("the model has no tokenizer.json, so there is no text to show; --json writes the token ids");
        } else if !self.json
            && let Some(tokenizer) = source.tokenizer.as_deref()
        {
            let paint = Paint::new(std::io::stdout().is_terminal());
            tell!("{}", paint.legend());
            let viewer = Viewer { tokenizer, special: tokenizer.special_tokens().into_iter().collect(), paint };
            let epoch = packer.epoch(0);
            for index in 0..epoch.len().min(self.limit.unwrap_or(SHOWN)) {
                tell!("{}", viewer.sequence(packer.documents(), index, epoch.len(), shape, epoch.parts(index)));
            }
        }
        let statistics = statistics(&report, &packer, shape);
        match self.json {
            true => say!("{statistics}"),
            false => tell!("{statistics}"),
        }
        Ok(())
    }
}

/// What there is, in lines.
fn statistics(report: &DataReport, packer: &Packer, shape: StepShape) -> String {
    let documents = packer.documents();
    let mut lengths: Vec<usize> = documents.iter().map(|doc| doc.tokens.len()).collect();
    lengths.sort_unstable();
    let at = |share: f64| lengths[((lengths.len() - 1) as f64 * share).round() as usize];
    let mean = documents.tokens() as f64 / lengths.len() as f64;
    let mut text = format!("data     {}", report.describe(documents.files(), &DataFacts::of(documents)));
    let _ = write!(
        text,
        "\nlengths  {} to {} tokens, median {}, mean {mean:.1}, 95% have at most {}",
        at(0.0),
        at(1.0),
        at(0.5),
        at(0.95)
    );
    let cut = documents.iter().filter(|doc| doc.labels.is_none() && doc.tokens.len() > shape.seq_len).count();
    if cut > 0 {
        let _ = write!(
            text,
            "\n         {cut} text(s) are longer than --seq-len {} and are cut into pieces",
            shape.seq_len
        );
    }
    let _ = write!(text, "\npacking  {}", describe_packing(packer, shape));
    for skip in report.skips.listed.iter().take(LISTED_SKIPS) {
        let path = documents.files().get(skip.file as usize).map(|path| path.display().to_string()).unwrap_or_default();
        let _ = write!(text, "\nskipped  {path}:{}: {}", skip.line, skip.reason);
    }
    let more = report.skips.total().saturating_sub(LISTED_SKIPS as u64);
    if more > 0 {
        let _ = write!(text, "\n         and {more} more");
    }
    text
}

/// How learnt text, other text and headings are told apart.
#[derive(Clone, Copy)]
struct Paint {
    colour: bool,
}

impl Paint {
    /// In colour on a terminal, unless `NO_COLOR` says otherwise (<https://no-color.org>).
    fn new(terminal: bool) -> Paint {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Paint { colour: terminal && !refused }
    }

    fn legend(&self) -> String {
        match self.colour {
            true => format!("{} {}", self.learnt("this is learnt"), self.given("this is only read")),
            false => format!("{} this is only read", self.learnt("this is learnt")),
        }
    }

    fn learnt(&self, text: &str) -> String {
        if self.colour { format!("\x1b[32m{text}\x1b[0m") } else { format!("⟦{text}⟧") }
    }

    fn given(&self, text: &str) -> String {
        if self.colour { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn heading(&self, text: &str) -> String {
        if self.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

struct Viewer<'a> {
    tokenizer: &'a dyn TextTokenizer,
    special: HashMap<i32, String>,
    paint: Paint,
}

impl Viewer<'_> {
    /// A sequence with the documents in it.
    fn sequence(
        &self,
        documents: &Documents,
        index: usize,
        count: usize,
        shape: StepShape,
        parts: impl Iterator<Item = (usize, Range<usize>)>,
    ) -> String {
        let parts: Vec<_> = parts.collect();
        let tokens: usize = parts.iter().map(|(_, places)| places.len()).sum();
        let heading = format!(
            "═══ sequence {} of {count}: {} document(s), {tokens} of {} tokens ═══",
            index + 1,
            parts.len(),
            shape.seq_len
        );
        let mut text = self.paint.heading(&heading);
        for (doc, places) in parts {
            let document = documents.get(doc);
            let whole = match places.len() == document.tokens.len() {
                true => String::new(),
                false => format!(", its tokens {} to {}", places.start + 1, places.end),
            };
            let (len, targets) = (places.len(), document.targets(places.start, places.end));
            let heading = format!("─── {}{whole}: {len} tokens, {targets} learnt ───", documents.origin(document));
            let _ = write!(text, "\n{}\n{}", self.paint.heading(&heading), self.document(document, places));
        }
        text
    }

    /// Part of a document, learnt runs marked. The first place is never learnt: nothing comes before it.
    fn document(&self, document: Document, places: Range<usize>) -> String {
        let learnt = |i: usize| i > places.start && document.labels.is_none_or(|labels| labels[i] != IGNORE);
        let mut text = String::new();
        let mut start = places.start;
        while start < places.end {
            let end = (start..places.end).find(|&i| learnt(i) != learnt(start)).unwrap_or(places.end);
            let run = self.run(&document.tokens[start..end]);
            text += &if learnt(start) { self.paint.learnt(&run) } else { self.paint.given(&run) };
            start = end;
        }
        text
    }

    /// Tokens as text, special ones by their spelling.
    fn run(&self, ids: &[i32]) -> String {
        let mut text = String::new();
        for part in ids.chunk_by(|a, b| self.special.contains_key(a) == self.special.contains_key(b)) {
            match self.special.contains_key(&part[0]) {
                true => part.iter().for_each(|id| text += &self.special[id]),
                false => text += &self.tokenizer.decode(part).unwrap_or_else(|e| format!("({e})")),
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megatrain_data::ByteTokenizer;

    fn viewer(colour: bool) -> Viewer<'static> {
        let special = ByteTokenizer.special_tokens().into_iter().collect();
        Viewer { tokenizer: &ByteTokenizer, special, paint: Paint { colour } }
    }

    fn documents(texts: &[(&str, Range<usize>)]) -> Documents {
        let lines = texts.iter().map(|(text, learnt)| {
            let tokens = ByteTokenizer.encode(text).unwrap();
            let label = |(i, &id): (usize, &i32)| if learnt.contains(&i) { id } else { IGNORE };
            let labels = tokens.iter().enumerate().map(label).collect();
            (tokens, labels)
        });
        Documents::from_lines("a.json", lines).unwrap()
    }

    #[test]
    fn learnt_text_is_marked_and_special_tokens_are_spelled() {
        let documents = documents(&[("ask: yes<|endoftext|>", 5..9)]);
        let document = documents.get(0);
        assert_eq!(viewer(false).document(document, 0..9), "ask: ⟦yes<|endoftext|>⟧");
        let coloured = viewer(true).document(document, 0..9);
        assert_eq!(coloured, "\x1b[2mask: \x1b[0m\x1b[32myes<|endoftext|>\x1b[0m");
        // The first token is never learnt, whatever its label.
        assert_eq!(viewer(false).document(document, 5..9), "y⟦es<|endoftext|>⟧");
    }

    #[test]
    fn borders_of_documents_show() {
        let documents = documents(&[("one", 1..3), ("two!", 1..2)]);
        let shape = StepShape { seq_len: 8, batch_size: 1, micro_batch_size: 1 };
        let text = viewer(false).sequence(&documents, 0, 1, shape, [(0, 0..3), (1, 0..4)].into_iter());
        assert_eq!(
            text,
            "═══ sequence 1 of 1: 2 document(s), 7 of 8 tokens ═══\n─── a.json:1: 3 tokens, 2 learnt ───\no⟦ne⟧\n\
             ─── a.json:2: 4 tokens, 1 learnt ───\nt⟦w⟧o!"
        );
    }
}
