//! The key of a data set changes with everything that its samples depend on, and with nothing else.

use megatrain_data::{
    AlpacaColumns, CacheKey, DataSource, Format, KeyBuilder, MessageColumns, Mix, Registry, SampleOptions, Samples,
};
use std::collections::HashSet;
use std::fs;
use std::path::Path;

fn key(sources: &[DataSource], options: &SampleOptions) -> CacheKey {
    let samples = Samples::new(sources, options).unwrap();
    let (mut key, mut bytes) = (KeyBuilder::new(), 0);
    samples.add_to_key(&mut key, |more| bytes += more).unwrap();
    // What draws a number of samples is read twice.
    if sources.iter().all(|source| source.num_samples.is_none()) {
        assert_eq!(bytes, samples.progress().1, "every byte is heard of");
    }
    key.finish()
}

fn files(dir: &Path, files: &[(&str, &str)]) -> Vec<DataSource> {
    let source = |(name, text): &(&str, &str)| {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        DataSource::new(path)
    };
    files.iter().map(source).collect()
}

#[test]
fn every_setting_has_a_key_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = ("{\"text\": \"one\"}\n", "{\"text\": \"two\"}\n");
    let plain = files(&dir.path().join("plain"), &[("a.jsonl", a), ("b.jsonl", b)]);
    let usual = SampleOptions::default();
    let with = |change: &dyn Fn(usize, &mut DataSource)| {
        let mut sources = plain.clone();
        sources.iter_mut().enumerate().for_each(|(i, source)| change(i, source));
        sources
    };
    let format = |format: Format| with(&|_, source| source.format = Some(format.clone()));
    let weights = |weights: [f64; 2]| with(&|i, source| source.weight = Some(weights[i]));
    let messages = |change: &dyn Fn(&mut MessageColumns)| {
        let mut columns = MessageColumns::sharegpt();
        change(&mut columns);
        format(Format::Messages(columns))
    };
    let seed = |seed| SampleOptions { seed, ..usual };
    let mixed = |mix| SampleOptions { mix: Some(mix), ..usual };
    let many = [
        (plain.clone(), usual),
        (plain.clone(), SampleOptions { strict: false, ..usual }),
        (with(&|_, source| source.num_samples = Some(1)), usual),
        (with(&|_, source| source.num_samples = Some(2)), usual),
        (with(&|_, source| source.num_samples = Some(2)), seed(1)),
        // Contents, and which file holds them.
        (files(&dir.path().join("c"), &[("a.jsonl", a), ("b.jsonl", a)]), usual),
        (files(&dir.path().join("d"), &[("a.jsonl", b), ("b.jsonl", a)]), usual),
        (files(&dir.path().join("e"), &[("a.jsonl", &[a, b].concat()), ("b.jsonl", "")]), usual),
        (files(&dir.path().join("f"), &[("a.jsonl", &[a, b].concat())]), usual),
        (vec![DataSource::new(dir.path().join("plain"))], usual),
        // The name's ending says how a file is read.
        (files(&dir.path().join("g"), &[("a.txt", a), ("b.jsonl", b)]), usual),
        (files(&dir.path().join("h"), &[("a.jsonl.gz", a), ("b.jsonl", b)]), usual),
        // Formats, down to single columns and tags.
        (format(Format::Text { column: "text".into() }), usual),
        (format(Format::Text { column: "body".into() }), usual),
        (format(Format::Alpaca(AlpacaColumns::default())), usual),
        (format(Format::Alpaca(AlpacaColumns { system: None, ..AlpacaColumns::default() })), usual),
        (format(Format::Alpaca(AlpacaColumns { response: "answer".into(), ..AlpacaColumns::default() })), usual),
        (messages(&|_| ()), usual),
        (messages(&|columns| columns.messages = "chat".into()), usual),
        (messages(&|columns| columns.tags.role = "who".into()), usual),
        (messages(&|columns| columns.tags.assistant.push("bot".into())), usual),
        (with(&|i, source| source.format = (i == 0).then_some(Format::Tokens)), usual),
        (with(&|i, source| source.format = (i == 1).then_some(Format::Tokens)), usual),
        // Mixing.
        (plain.clone(), mixed(Mix::InterleaveUnder)),
        (plain.clone(), mixed(Mix::InterleaveOver)),
        (plain.clone(), mixed(Mix::InterleaveOnce)),
        (weights([1.0, 2.0]), usual),
        (weights([2.0, 1.0]), usual),
        (weights([1.0, 2.0]), seed(1)),
    ];
    let keys: HashSet<CacheKey> = many.iter().map(|(sources, options)| key(sources, options)).collect();
    assert_eq!(keys.len(), many.len());
}

#[test]
fn what_changes_no_sample_changes_no_key() {
    let dir = tempfile::tempdir().unwrap();
    let text = "{\"text\": \"one\"}\n";
    let here = files(&dir.path().join("here"), &[("a.jsonl", text)]);
    let there = files(&dir.path().join("there"), &[("renamed.jsonl", text)]);
    let usual = SampleOptions::default();
    assert_eq!(key(&here, &usual), key(&there, &usual), "where a file is");
    assert_eq!(key(&here, &usual), key(&here, &SampleOptions { seed: 9, ..usual }), "a seed that draws nothing");
    let concat = SampleOptions { mix: Some(Mix::Concat), ..usual };
    assert_eq!(key(&here, &usual), key(&here, &concat), "the default, said");
}

#[test]
fn a_registry_changes_the_key_by_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.json"), "[]").unwrap();
    let said = |entry: &str| {
        fs::write(dir.path().join("dataset_info.json"), format!("{{\"x\": {{\"file_name\": \"a.json\"{entry}}}}}"))
            .unwrap();
        key(&[Registry::open(dir.path()).unwrap().source("x").unwrap()], &SampleOptions::default())
    };
    let columns = |names: &str| said(&format!(", \"columns\": {{{names}}}"));
    let keys = HashSet::from([
        said(""),
        said(", \"formatting\": \"sharegpt\""),
        said(", \"formatting\": \"sharegpt\", \"tags\": {\"user_tag\": \"me\"}"),
        columns("\"prompt\": \"p\", \"response\": \"r\""),
        columns("\"prompt\": \"p\", \"response\": \"r\", \"system\": \"s\""),
        columns("\"prompt\": \"p\""),
    ]);
    assert_eq!(keys.len(), 6);
    assert_eq!(said(""), said(", \"formatting\": \"alpaca\""), "the default, said");
}
