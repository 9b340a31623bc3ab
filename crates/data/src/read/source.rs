//! One source of data: a file or a directory's files in order, record by record; what is good of it and what is skipped.

use super::bytes::{self, Counter};
use super::draw::Draw;
use super::files::{self, Container, FileKind, Packing};
use super::format::{Fault, Format};
use super::json::{Broken, JsonRows, Row, describe};
#[cfg(feature = "arrow")]
use super::table::TableRows;
use crate::conversation::Sample;
use crate::error::{self, Error};
use crate::random::Random;
use crate::skip::{Skip, Skips};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A file or a directory to read, how, and how much of a mixture it is to be.
#[derive(Clone, PartialEq, Debug)]
pub struct DataSource {
    /// A file, or a directory whose visible data files are read at any depth, by name.
    pub path: PathBuf,
    /// The form of its records. None: each file's first record shows it.
    pub format: Option<Format>,
    /// Its share of the mixture, relative to the other sources' weights. None: sources come one after the other.
    pub weight: Option<f64>,
    /// How many samples to take of it, drawn by the seed: at most once each, unless there are fewer; then each comes as
    /// often as any other, give or take one. In the order of the files. They are counted first, so the source is read
    /// twice. None: all.
    pub num_samples: Option<u64>,
}

impl DataSource {
    /// A path whose records show their form.
    pub fn new(path: impl Into<PathBuf>) -> DataSource {
        DataSource { path: path.into(), format: None, weight: None, num_samples: None }
    }

    /// `PATH` or `PATH:WEIGHT`. A path that exists as it stands has no weight.
    ///
    /// # Errors
    /// The weight is not a positive number.
    pub fn parse(text: &str) -> Result<DataSource, Error> {
        let (path, weight) = split_weight(text)?;
        Ok(DataSource { weight, ..DataSource::new(path) })
    }
}

/// Splits `NAME:WEIGHT`; a name that is an existing path as it stands is left whole.
pub(super) fn split_weight(text: &str) -> Result<(&str, Option<f64>), Error> {
    let Some((name, weight)) = text.rsplit_once(':') else { return Ok((text, None)) };
    let Ok(weight) = weight.trim().parse::<f64>() else { return Ok((text, None)) };
    if Path::new(text).exists() {
        return Ok((text, None));
    }
    if !(weight > 0.0 && weight.is_finite()) {
        return Err(Error::Invalid(format!("the weight of {name} must be a number above 0, not {weight}")));
    }
    Ok((name, Some(weight)))
}

/// What was read of a source.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceReport {
    /// Its path.
    pub path: PathBuf,
    /// The form of the records read last; None before the first.
    pub format: Option<Cow<'static, str>>,
    /// Samples handed out, repeated ones again.
    pub samples: u64,
    /// Records skipped, each once.
    pub skipped: u64,
    /// How often it was read to its end.
    pub passes: u64,
}

/// What all sources of a data set share.
pub(super) struct Shared {
    pub files: Vec<PathBuf>,
    /// The same files, to find one.
    pub known: HashSet<PathBuf>,
    /// Files in directories whose names are not those of data.
    pub passed_over: Vec<PathBuf>,
    pub skips: Skips,
    pub strict: bool,
    pub counter: Counter,
}

impl Shared {
    pub(super) fn new(strict: bool) -> Shared {
        let (files, known) = (Vec::new(), HashSet::new());
        Shared { files, known, passed_over: Vec::new(), skips: Skips::default(), strict, counter: Counter::default() }
    }
}

/// A source that is being read.
pub(super) struct Source {
    pub report: SourceReport,
    format: Option<Format>,
    /// Index into the shared files, and kind.
    files: Vec<(u32, FileKind)>,
    /// Index into `files`.
    next: usize,
    open: Option<Open>,
    /// The first skipped record and why, for a source that has nothing else.
    first_skip: Option<String>,
    /// Whether the files were read to their end once, to count samples.
    skips_told: bool,
    /// Which samples are handed out, where not all are, once.
    draw: Option<Draw>,
}

struct Open {
    file: u32,
    rows: Rows,
    /// Given or detected, and the line that showed it.
    format: Option<(Format, u64)>,
}

enum Rows {
    Text(FileKind),
    Json(JsonRows),
    #[cfg(feature = "arrow")]
    Table(TableRows),
    Done,
}

impl Source {
    /// Finds the files, which must not have been found before.
    pub(super) fn new(source: &DataSource, random: Random, shared: &mut Shared) -> Result<Source, Error> {
        let mut files = Vec::new();
        for (path, kind) in files::find(&source.path, &mut shared.passed_over)? {
            // `a`, `./a` and a link to it are one file.
            if !shared.known.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                return Err(error::file(path, "given twice in --data; name it once"));
            }
            files.push((shared.files.len() as u32, kind));
            shared.files.push(path);
        }
        let report = SourceReport { path: source.path.clone(), format: None, samples: 0, skipped: 0, passes: 0 };
        let draw = source.num_samples.map(|count| Draw::new(count, random));
        Ok(Source {
            report,
            format: source.format.clone(),
            files,
            next: 0,
            open: None,
            first_skip: None,
            skips_told: false,
            draw,
        })
    }

    /// How its files are read, as a text for a key: nothing that says where they are.
    pub(super) fn settings(&self) -> String {
        let kinds: Vec<FileKind> = self.files.iter().map(|(_, kind)| *kind).collect();
        let drawn = self.draw.as_ref().map(Draw::settings).unwrap_or_default();
        format!("{:?} {kinds:?}{drawn}", self.format)
    }

    /// Begins again.
    pub(super) fn rewind(&mut self) {
        self.next = 0;
        self.open = None;
        if let Some(draw) = &mut self.draw {
            draw.rewind();
        }
    }

    /// The next sample; None at the end. A source without any is an error.
    pub(super) fn next_sample(&mut self, shared: &mut Shared) -> Result<Option<Sample>, Error> {
        let next = match self.draw.take() {
            None => self.read_sample(shared)?,
            Some(mut draw) => {
                let next = self.drawn_sample(&mut draw, shared);
                self.draw = Some(draw);
                next?
            }
        };
        self.report.samples += u64::from(next.is_some());
        match next {
            None => self.end().map(|()| None),
            sample => Ok(sample),
        }
    }

    /// The next of the drawn samples.
    fn drawn_sample(&mut self, draw: &mut Draw, shared: &mut Shared) -> Result<Option<Sample>, Error> {
        if !draw.counted() {
            let mut there = 0;
            while self.read_sample(shared)?.is_some() {
                there += 1;
            }
            draw.count(there);
            (self.next, self.open, self.skips_told) = (0, None, true);
        }
        loop {
            if let Some(again) = draw.again() {
                return Ok(Some(again));
            }
            let Some(sample) = self.read_sample(shared)? else { return Ok(None) };
            draw.meet(sample);
        }
    }

    /// The next sample that the files have.
    fn read_sample(&mut self, shared: &mut Shared) -> Result<Option<Sample>, Error> {
        loop {
            if self.open.is_none() {
                let Some(&(file, kind)) = self.files.get(self.next) else { return Ok(None) };
                self.next += 1;
                self.open = Some(self.open_file(file, kind, shared)?);
            }
            let open = self.open.as_mut().expect("opened above");
            let path = &shared.files[open.file as usize];
            let (line, fault) = match open.next_sample(path, shared.strict, &shared.counter)? {
                None => {
                    self.open = None;
                    continue;
                }
                Some(Ok(sample)) => {
                    self.report.format = open.format.as_ref().map(|(format, _)| format.name().into());
                    return Ok(Some(sample));
                }
                Some(Err(skipped)) => skipped,
            };
            // When a source is read again, its skips have been counted.
            if self.report.passes == 0 && !self.skips_told {
                self.report.skipped += 1;
                let Fault { kind, reason } = fault;
                self.first_skip.get_or_insert_with(|| error::line(path, line, reason.as_str()).to_string());
                shared.skips.add(Skip { file: open.file, line, kind: kind.into(), reason });
            }
        }
    }

    fn end(&mut self) -> Result<(), Error> {
        self.report.passes += 1;
        match &self.first_skip {
            Some(first) if self.report.samples == 0 => {
                let skipped = self.report.skipped;
                let problem = match skipped {
                    1 => format!("its only record cannot be used: {first}"),
                    _ => format!("none of its {skipped} records can be used; the first is {first}"),
                };
                Err(error::file(&self.report.path, problem))
            }
            _ => Ok(()),
        }
    }

    fn open_file(&self, file: u32, kind: FileKind, shared: &Shared) -> Result<Open, Error> {
        let path = &shared.files[file as usize];
        let rows = match kind.container {
            Container::Text => {
                if let Some(format) = self.format.as_ref().filter(|f| !matches!(f, Format::Text { .. })) {
                    let problem = format!("a .txt file is one text; it cannot be read as {}", format.name());
                    return Err(error::file(path, problem));
                }
                Rows::Text(kind)
            }
            Container::Json => Rows::Json(JsonRows::new(path, bytes::open(path, kind.packing, &shared.counter)?)?),
            #[cfg(feature = "arrow")]
            Container::Parquet => Rows::Table(TableRows::parquet(path, &shared.counter)?),
            #[cfg(feature = "arrow")]
            Container::Arrow => Rows::Table(TableRows::arrow(path, &shared.counter)?),
            #[cfg(not(feature = "arrow"))]
            Container::Parquet | Container::Arrow => {
                let problem = "this build reads no Parquet and no Arrow; add `--features arrow` to the `cargo` command, or \
                               convert the file to .jsonl";
                return Err(error::file(path, problem));
            }
        };
        let format = match kind.container {
            Container::Text => Some((Format::Text { column: String::new() }, 0)),
            _ => self.format.clone().map(|format| (format, 0)),
        };
        Ok(Open { file, rows, format })
    }
}

/// A record that is skipped: its line and why.
type Skipped = (u64, Fault);

impl Open {
    fn next_sample(
        &mut self,
        path: &Path,
        strict: bool,
        counter: &Counter,
    ) -> Result<Option<Result<Sample, Skipped>>, Error> {
        let row = match &mut self.rows {
            Rows::Done => return Ok(None),
            Rows::Text(kind) => {
                let text = whole_text(path, kind.packing, counter)?;
                self.rows = Rows::Done;
                return Ok(Some(Ok(Sample::Text { text, file: self.file, line: 0 })));
            }
            Rows::Json(rows) => rows.next_row(),
            #[cfg(feature = "arrow")]
            Rows::Table(rows) => rows.next_row(),
        };
        match row {
            None => Ok(None),
            Some(Err(Broken::File(error))) => Err(error),
            Some(Err(Broken::Value { line, kind, problem })) => garbage(path, strict, line, kind, problem),
            Some(Ok((line, value))) => self.sample(path, strict, (line, value)),
        }
    }

    fn sample(
        &mut self,
        path: &Path,
        strict: bool,
        (line, value): Row,
    ) -> Result<Option<Result<Sample, Skipped>>, Error> {
        let Value::Object(object) = value else {
            let problem = format!("a record must be an object, not {}", describe(&value));
            return garbage(path, strict, line, "not an object", problem);
        };
        let (format, shown) = match &self.format {
            Some(known) => known,
            None => {
                let format = Format::detect(&object).map_err(|problem| error::line(path, line, problem))?;
                self.format.insert((format, line))
            }
        };
        // A line of 0: the format was given, so nothing else is looked for.
        if *shown > 0 && !format.fits(&object) {
            let other = Format::detect(&object).ok().map(|other| other.name());
            if let Some(other) = other.filter(|&other| other != format.name()) {
                let problem = format!(
                    "this record is of the form \"{other}\", but line {shown} is \"{}\"; put the two kinds in separate \
                     files",
                    format.name()
                );
                return garbage(path, strict, line, "another format", problem);
            }
        }
        match format.sample(object, self.file, line) {
            Ok(sample) => Ok(Some(Ok(sample))),
            // A program has made these, so a fault in one is a fault in all.
            Err(fault) if matches!(format, Format::Tokens) => garbage(path, strict, line, fault.kind, fault.reason),
            Err(fault) => Ok(Some(Err((line, fault)))),
        }
    }
}

/// What is no record at all: an error, or where that is wished a skipped record.
fn garbage<T>(
    path: &Path,
    strict: bool,
    line: u64,
    kind: &'static str,
    problem: String,
) -> Result<Option<Result<T, Skipped>>, Error> {
    match strict {
        true => Err(error::line(path, line, problem)),
        false => Ok(Some(Err((line, Fault { kind, reason: problem })))),
    }
}

/// A text file as one text; `\r\n` becomes `\n`.
fn whole_text(path: &Path, packing: Packing, counter: &Counter) -> Result<String, Error> {
    let mut bytes = bytes::open(path, packing, counter)?;
    let mut content = Vec::new();
    bytes.reader.read_to_end(&mut content).map_err(error::io(path, "reading"))?;
    bytes::utf8(&content, 1, bytes.mark_bytes).map_err(|e| error::line(path, e.line, e.problem))?;
    let content = String::from_utf8(content).expect("checked above");
    if content.trim().is_empty() {
        return Err(error::file(path, "the file is empty; remove it or leave it out"));
    }
    Ok(if content.contains("\r\n") { content.replace("\r\n", "\n") } else { content })
}
