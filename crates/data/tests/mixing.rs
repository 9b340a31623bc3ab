//! Several sources: drawn by weight, until one or all of them end.

use megatrain_data::{DataSource, Mix, SampleOptions, Samples, SourceReport};
use std::fs;
use std::path::Path;

/// Reads three files of 10, 100 and 1000 texts with weights 1, 1 and 2: what came of each, and the order.
fn mixed(dir: &Path, mix: Mix, seed: u64) -> (Vec<SourceReport>, Vec<u32>) {
    let source = |name: &str, weight| DataSource { weight: Some(weight), ..DataSource::new(dir.join(name)) };
    let sources = [source("a.jsonl", 1.0), source("b.jsonl", 1.0), source("c.jsonl", 2.0)];
    let options = SampleOptions { mix: Some(mix), seed, ..SampleOptions::default() };
    let mut samples = Samples::new(&sources, &options).unwrap();
    let order = samples.by_ref().map(|sample| sample.unwrap().place().0).collect();
    assert_eq!(samples.skips().total(), 1, "skips of a repeated source are counted once");
    (samples.reports().cloned().collect(), order)
}

#[test]
fn sources_are_mixed_by_weight_until_one_or_all_of_them_end() {
    let dir = tempfile::tempdir().unwrap();
    for (name, count) in [("a.jsonl", 10), ("b.jsonl", 100), ("c.jsonl", 1000)] {
        let bad = if name == "a.jsonl" { "{\"text\": \"\"}\n" } else { "" };
        fs::write(dir.path().join(name), bad.to_owned() + &"{\"text\": \"t\"}\n".repeat(count)).unwrap();
    }
    let counts = |reports: &[SourceReport]| reports.iter().map(|report| report.samples).collect::<Vec<_>>();

    let (reports, order) = mixed(dir.path(), Mix::InterleaveOnce, 1);
    assert_eq!(counts(&reports), [10, 100, 1000]);
    assert_ne!(order, mixed(dir.path(), Mix::InterleaveOnce, 2).1, "the seed chooses");
    assert_eq!(order, mixed(dir.path(), Mix::InterleaveOnce, 1).1);
    // 400 draws with probability 1/2: 200, with a standard deviation of 10 (the smallest source ends after some 40).
    let start = order[..30].iter().filter(|&&file| file == 2).count();
    assert!((7..=23).contains(&start), "{start}");

    let (reports, _) = mixed(dir.path(), Mix::InterleaveUnder, 1);
    assert_eq!(counts(&reports)[0], 10, "the smallest ends it");
    assert!((5..=100).contains(&counts(&reports)[2]), "{reports:?}");

    let (reports, _) = mixed(dir.path(), Mix::InterleaveOver, 1);
    let counts = counts(&reports);
    assert!((1000..1005).contains(&counts[2]), "the largest ends it: {reports:?}");
    // 2000 draws at 1/4: 500, with a standard deviation of 20 and that of the number of draws.
    assert!((400..=600).contains(&counts[0]) && (400..=600).contains(&counts[1]), "{reports:?}");
    assert!(reports[0].passes >= 40);
}

#[test]
fn weights_are_given_for_all_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("{}/{name}", dir.path().display());
    for name in ["a.jsonl", "b.jsonl", "c:0.5"] {
        fs::write(path(name), "{\"text\": \"t\"}\n").unwrap();
    }
    let parse = |text: &str| DataSource::parse(&path(text)).unwrap();
    assert_eq!((parse("a.jsonl:0.3").weight, parse("a.jsonl").weight), (Some(0.3), None));
    assert_eq!(parse("c:0.5").path, Path::new(&path("c:0.5")), "a file that is there keeps its name");
    for wrong in ["a:0", "a:-1", "a:inf", "a:nan"] {
        let error = DataSource::parse(wrong).unwrap_err().to_string();
        assert!(error.starts_with("the weight of a must be a number above 0"), "{error}");
    }
    let error = |sources: &[DataSource], mix| {
        Samples::new(sources, &SampleOptions { mix, ..SampleOptions::default() }).err().unwrap().to_string()
    };
    assert!(
        error(&[parse("a.jsonl:1"), parse("b.jsonl")], None)
            .ends_with("b.jsonl has no weight, but others have; give all or none")
    );
    assert!(
        error(&[parse("a.jsonl:1")], Some(Mix::Concat)).starts_with("weights mix sources, but the strategy is concat")
    );
    assert_eq!(Mix::named("interleave_over"), Ok(Mix::InterleaveOver));
    assert!(Mix::named("shuffle").unwrap_err().contains("there are concat, interleave_under"));
}
