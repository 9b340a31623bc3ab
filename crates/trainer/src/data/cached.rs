//! [`Reader::read`]: all documents of a data set, from the cache where they were made before with everything that they depend
//! on the same, else made and kept there.

use super::report::DataReport;
use super::{Data, Reader};
use crate::progress;
use anyhow::{Context, Result};
use megatrain_base::fmt_bytes;
use megatrain_data::{CacheKey, DataSource, KeyBuilder, Samples, TokenCache, TokenWriter};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files of fewer bytes in all are read anew each time: that takes less than a second or two.
const MIN_BYTES: u64 = 1 << 20;

/// The program that runs, also where it was replaced on disk.
const PROGRAM: &str = "/proc/self/exe";

/// The keys under which the documents of a data set may be kept.
struct Keys {
    /// Where all of them are texts, of which neither template nor length changes a token.
    texts: CacheKey,
    /// Where any is something else.
    all: CacheKey,
}

impl Reader {
    /// Reads all of some sources.
    ///
    /// # Errors
    /// What cannot be read or encoded, with file and line; data of which nothing is left.
    pub fn read(&self, sources: &[DataSource], what: &'static str) -> Result<Data> {
        let samples = self.samples(sources)?;
        let files = samples.files().to_vec();
        let (_, total_bytes) = samples.progress();
        // What is no file, such as a pipe, can be read once only, so nothing can be known of it before.
        let can = total_bytes >= MIN_BYTES && Path::new(PROGRAM).exists() && files.iter().all(|path| path.is_file());
        let Some(cache) = self.cache.as_ref().filter(|_| can) else {
            let mut writer = TokenWriter::in_memory(&files);
            let report = self.read_all(samples, &mut writer, what)?;
            return Ok(Data { documents: writer.finish()?, report });
        };
        // What is wrong with the first record is told before all of the files are read for the key. To draw some, all would be
        // counted for it.
        if sources.iter().all(|source| source.num_samples.is_none()) {
            self.samples(sources)?.next().transpose()?;
        }
        let before = stamps(&files);
        let keys = self.keys(&samples)?;
        for key in [keys.texts, keys.all] {
            if let Some(data) = self.kept(cache, key, &files, sources)? {
                return Ok(data);
            }
        }
        let mut writer = cache.writer(&files);
        let report = self.read_all(samples, &mut writer, what)?;
        // What was read may not be what the key was made of.
        if stamps(&files) != before {
            say!("note     files have changed while they were read, so their tokens are not kept");
            return Ok(Data { documents: writer.finish()?, report });
        }
        let key = match report.conversations + report.completions + report.pretokenized {
            0 => keys.texts,
            _ => keys.all,
        };
        let (documents, problem) = writer.keep(key, &serde_json::to_string(&report)?)?;
        match problem {
            Some(problem) => say!("note     the tokens are not kept for later runs: {problem}"),
            None => {
                let path = cache.path(key);
                let bytes = path.metadata().map_or(0, |meta| meta.len());
                say!(
                    "cache    {} of tokens kept for later runs in {} (MEGATRAIN_CACHE=FOLDER keeps them elsewhere, \
                     MEGATRAIN_CACHE=off nowhere)",
                    fmt_bytes(bytes),
                    path.display()
                );
            }
        }
        Ok(Data { documents, report })
    }

    /// What the documents depend on: this very program, since another build may read, render or encode otherwise; files, how
    /// they are read and mixed, tokenizer and vocabulary; and for all that is no text: template, masks, lengths and, where
    /// the template prints it, the date.
    fn keys(&self, samples: &Samples) -> Result<Keys> {
        let bar = progress::bar(samples.progress().1, "looking for tokens in the cache");
        let mut key = KeyBuilder::new();
        key.file(Path::new(PROGRAM), |_| ())?;
        samples.add_to_key(&mut key, |bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
        key.text(&format!("vocabulary {}", self.vocab));
        if let Some(encoders) = &self.encoders {
            let tokenizer = &encoders.tokenizer;
            let ids = (tokenizer.begin_id(), tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.vocab_size());
            key.text(&format!("tokenizer {ids:?}"));
            match &encoders.tokenizer_file {
                Some(path) => key.file(path, |_| ())?,
                None => key.text("bytes"),
            };
        }
        let texts = key.finish();
        key.text(&format!("length {}, {:?}", self.seq_len, self.truncation));
        if let Some(encoders) = &self.encoders {
            key.text(&encoders.settings());
        }
        Ok(Keys { texts, all: key.finish() })
    }

    /// What is kept under a key, if it is whole.
    fn kept(
        &self,
        cache: &TokenCache,
        key: CacheKey,
        files: &[PathBuf],
        sources: &[DataSource],
    ) -> Result<Option<Data>> {
        let bar = progress::bar(1, "checking tokens of the cache");
        let found = cache.load(key, files, |bytes, of| {
            bar.set_length(of);
            bar.set_position(bytes);
        });
        bar.finish_and_clear();
        let Some((documents, note)) = found else { return Ok(None) };
        let Ok(mut report) = serde_json::from_str::<DataReport>(&note) else { return Ok(None) };
        // The same files may have been elsewhere.
        report.sources.iter_mut().zip(sources).for_each(|(report, source)| report.path.clone_from(&source.path));
        if report.conversations > 0 {
            let encoders = self.encoders.as_ref().context("tokens of conversations, but no tokenizer")?;
            // It says what is to be known about the template.
            encoders.chat()?;
        }
        say!(
            "cache    tokens come from {}, made before of the same files with the same settings (MEGATRAIN_CACHE=off reads \
             the files)",
            cache.path(key).display()
        );
        Ok(Some(Data { documents, report }))
    }
}

/// Size and time of change of each file, as far as they are known.
fn stamps(files: &[PathBuf]) -> Vec<Option<(u64, Option<SystemTime>)>> {
    files.iter().map(|path| path.metadata().ok().map(|meta| (meta.len(), meta.modified().ok()))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{TrainOn, Truncation, training_sources};
    use super::*;
    use crate::options::TrainOptions;
    use crate::setup::Source;
    use megatrain_data::ChatOptions;
    use megatrain_data::chat::NamedTemplate;
    use megatrain_planner::Model;
    use serde_json::json;
    use std::collections::HashSet;
    use std::fmt::Write;
    use std::fs;
    use std::sync::Arc;

    const SEQ_LEN: usize = 128;

    /// Options whose data are these files of a folder.
    fn options(dir: &Path, files: &[(&str, &str)]) -> TrainOptions {
        let file = |(name, text): &(&str, &str)| {
            let path = dir.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let data = files.iter().map(file).collect();
        TrainOptions { data: Some(data), template: Some("chatml".into()), ..TrainOptions::default() }
    }

    fn source() -> Source {
        crate::say::be_quiet();
        Source::preset("demo").unwrap()
    }

    fn read(options: &TrainOptions, seq_len: usize, cache: Option<&TokenCache>) -> Data {
        let reader = Reader::new(options, &source(), seq_len).unwrap().with_cache(cache.cloned());
        reader.read(&training_sources(options).unwrap(), "").unwrap()
    }

    fn same(a: &Data, b: &Data) -> bool {
        a.documents == b.documents && a.report == b.report
    }

    /// What there is in a folder that a cache has.
    fn stored(dir: &Path) -> Vec<PathBuf> {
        fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }

    /// More than a mebibyte of records of all kinds, some of them bad or too long.
    fn records() -> [(&'static str, String); 3] {
        let (mut chats, mut texts, mut ids) = (String::new(), String::new(), String::new());
        for i in 0..10_000 {
            let answer = if i % 7 == 0 { "" } else { "yes" };
            let user = if i % 11 == 0 { "long ".repeat(20) } else { format!("is it {i}?") };
            writeln!(chats, "{}", json!({ "instruction": user, "output": answer })).unwrap();
            writeln!(texts, "{}", json!({ "text": format!("text number {i}") })).unwrap();
            writeln!(ids, "{}", json!({ "input_ids": [1, 2, i % 200], "labels": [-100, 2, i % 200] })).unwrap();
        }
        [("chats.jsonl", chats), ("texts.jsonl", texts), ("ids.jsonl", ids)]
    }

    #[test]
    fn what_comes_from_the_cache_is_what_was_read() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, files) = (dir.path().join("cache"), records());
        let cache = TokenCache::at(&folder);
        let options = options(dir.path(), &files.each_ref().map(|(name, text)| (*name, text.as_str())));
        let plain = read(&options, SEQ_LEN, None);
        let kinds: Vec<_> = plain.report.skips.totals.keys().collect();
        assert!(kinds.len() == 2 && plain.documents.len() > 20_000, "{kinds:?}");
        let first = read(&options, SEQ_LEN, Some(&cache));
        let second = read(&options, SEQ_LEN, Some(&cache));
        assert!(same(&first, &plain) && same(&second, &plain));
        assert_eq!(stored(&folder).len(), 1);

        // Damage is noticed, and the file is made anew.
        let path = &stored(&folder)[0];
        let whole = fs::read(path).unwrap();
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 1;
        fs::write(path, damaged).unwrap();
        assert!(same(&read(&options, SEQ_LEN, Some(&cache)), &plain));
        assert!(fs::read(path).unwrap() == whole);

        // Proof that it is the file that is read: another one under its name shows.
        let longer = read(&options, 2 * SEQ_LEN, Some(&cache));
        assert!(longer.documents != plain.documents && stored(&folder).len() == 2);
        let keys = |seq_len| {
            let reader = Reader::new(&options, &source(), seq_len).unwrap();
            reader.keys(&reader.samples(&training_sources(&options).unwrap()).unwrap()).unwrap().all
        };
        let mut writer = cache.writer(plain.documents.files());
        writer.append(&longer.documents).unwrap();
        writer.keep(keys(SEQ_LEN), &serde_json::to_string(&plain.report).unwrap()).unwrap();
        assert!(read(&options, SEQ_LEN, Some(&cache)).documents == longer.documents);

        // The same file elsewhere, too.
        let moved: Vec<PathBuf> =
            options.data.iter().flatten().map(|path| path.with_extension("moved.jsonl")).collect();
        options.data.iter().flatten().zip(&moved).for_each(|(from, to)| fs::rename(from, to).unwrap());
        let options = TrainOptions { data: Some(moved.clone()), ..options };
        let data = read(&options, 2 * SEQ_LEN, Some(&cache));
        assert!(data.documents.iter().eq(longer.documents.iter()) && stored(&folder).len() == 2);
        assert_eq!((data.documents.files(), &data.report.sources[0].path), (&moved[..], &moved[0]));
    }

    #[test]
    fn a_folder_that_cannot_be_written_stops_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let [_, (name, text), _] = records();
        let text = text.repeat(4);
        let options = options(dir.path(), &[(name, &text)]);
        let cache = TokenCache::at(dir.path().join(name).join("no folder"));
        assert!(same(&read(&options, SEQ_LEN, Some(&cache)), &read(&options, SEQ_LEN, None)));
    }

    #[test]
    fn texts_are_kept_for_every_length_and_template() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("cache");
        let cache = TokenCache::at(&folder);
        let [_, (name, text), _] = records();
        let mut options = options(dir.path(), &[(name, &text.repeat(4))]);
        let first = read(&options, SEQ_LEN, Some(&cache));
        options.template = None;
        assert!(same(&read(&options, 2 * SEQ_LEN, Some(&cache)), &first));
        assert_eq!(stored(&folder).len(), 1);
        // Small files are not kept.
        fs::write(dir.path().join(name), &text).unwrap();
        read(&options, SEQ_LEN, Some(&cache));
        assert_eq!(stored(&folder).len(), 1);
    }

    #[test]
    fn bad_data_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("cache");
        let [_, (name, text), _] = records();
        let options = options(dir.path(), &[(name, &(text.repeat(4) + "no record"))]);
        let reader = Reader::new(&options, &source(), SEQ_LEN).unwrap().with_cache(Some(TokenCache::at(&folder)));
        assert!(reader.read(&training_sources(&options).unwrap(), "").is_err());
        assert!(stored(&folder).is_empty());
    }

    #[test]
    fn every_setting_has_a_key_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let usual = options(dir.path(), &[("a.jsonl", "x"), ("b.jsonl", "y")]);
        let key = |options: &TrainOptions, source: &Source, seq_len, change: &dyn Fn(&mut Reader)| {
            let mut reader = Reader::new(options, source, seq_len).unwrap();
            change(&mut reader);
            let samples = reader.samples(&training_sources(options).unwrap()).unwrap();
            reader.keys(&samples).unwrap()
        };
        let source = source();
        let with = |change: &dyn Fn(&mut TrainOptions)| {
            let mut options = usual.clone();
            change(&mut options);
            key(&options, &source, SEQ_LEN, &|_| ())
        };
        let reader = |change: &dyn Fn(&mut Reader)| key(&usual, &source, SEQ_LEN, change);
        let encoders = |change: &dyn Fn(&mut super::super::read::Encoders)| {
            reader(&|reader| change(Arc::get_mut(reader.encoders.as_mut().unwrap()).unwrap()))
        };
        let chat = |change: &dyn Fn(&mut ChatOptions)| encoders(&|encoders| change(&mut encoders.options));
        let own = |text: &str| {
            let template =
                NamedTemplate { name: "default".into(), text: text.into(), path: "chat_template.jinja".into() };
            encoders(&|encoders| {
                encoders.files.templates = vec![template.clone()];
                encoders.options.template = Default::default();
            })
        };
        let tokenizer = |text: &str| {
            let path = write("tokenizer.json", text);
            encoders(&|encoders| encoders.tokenizer_file = Some(path.clone()))
        };
        let mut config = source.model.config.clone();
        config.vocab += 1;
        let larger = Source { model: Arc::new(Model::new(&config)), ..self::source() };
        let files = |options: &mut TrainOptions, weights: [&str; 2]| {
            let weighted = options.data.iter().flatten().zip(weights);
            options.data = Some(weighted.map(|(path, weight)| format!("{}{weight}", path.display()).into()).collect());
        };
        let two = write("two.jinja", "{{ messages }}").display().to_string();

        // What all documents depend on.
        let every = [
            with(&|_| ()),
            with(&|o| o.format = Some("text".into())),
            with(&|o| o.data.as_mut().unwrap().reverse()),
            with(&|o| files(o, [":1", ":2"])),
            with(&|o| files(o, [":2", ":1"])),
            with(&|o| (files(o, [":1", ":2"]), o.seed = Some(1)).1),
            with(&|o| (files(o, [":1", ":2"]), o.mix_strategy = Some("interleave_over".into())).1),
            with(&|o| o.mix_strategy = Some("interleave_once".into())),
            key(&usual, &larger, SEQ_LEN, &|_| ()),
            reader(&|reader| reader.encoders = None),
            tokenizer("{}"),
            tokenizer("{ }"),
        ];
        assert_eq!(every.iter().map(|keys| keys.texts).collect::<HashSet<_>>().len(), every.len());
        assert_eq!(every.iter().map(|keys| keys.all).collect::<HashSet<_>>().len(), every.len());

        // What only conversations, completions and token ids depend on.
        let dated = "{{ strftime_now('%F') }}{{ messages }}";
        let tomorrow = |encoders: &mut super::super::read::Encoders, text: &str| {
            let template =
                NamedTemplate { name: "default".into(), text: text.into(), path: "chat_template.jinja".into() };
            encoders.files.templates = vec![template];
            encoders.options.template = Default::default();
            encoders.options.now = encoders.options.now.map(|now| now + 24 * 60 * 60);
        };
        let some = [
            with(&|_| ()),
            key(&usual, &source, SEQ_LEN + 1, &|_| ()),
            with(&|o| o.template = Some("zephyr".into())),
            with(&|o| o.template = Some(two.clone())),
            with(&|o| o.train_on = Some(TrainOn::LastTurn)),
            with(&|o| o.train_on = Some(TrainOn::Everything)),
            with(&|o| o.truncation = Some(Truncation::Left)),
            with(&|o| o.truncation = Some(Truncation::Right)),
            // The default for conversations, but an error for token ids where it is not said.
            with(&|o| o.truncation = Some(Truncation::Drop)),
            chat(&|options| drop(options.variables.insert("thinking".into(), false.into()))),
            own("{{ messages }}"),
            own("{{ messages }} "),
            own(dated),
            encoders(&|encoders| tomorrow(encoders, dated)),
            encoders(&|encoders| drop(encoders.files.special_tokens.insert("bos_token".into(), "<s>".into()))),
        ];
        assert_eq!(some.iter().map(|keys| keys.all).collect::<HashSet<_>>().len(), some.len());
        assert_eq!(some.iter().map(|keys| keys.texts).collect::<HashSet<_>>().len(), 1);

        // What changes no document.
        assert!(encoders(&|encoders| tomorrow(encoders, "{{ messages }}")).all == own("{{ messages }}").all);
        for (name, same) in [
            ("seed", with(&|o| o.seed = Some(5))),
            ("batch size", with(&|o| o.batch_size = Some(5))),
            ("the template's name said", with(&|o| o.template = Some("chatml".into()))),
        ] {
            assert!(same.all == some[0].all && same.texts == some[0].texts, "{name}");
        }
    }
}
