//! Streams: every document once an epoch, in an order of files, options and seed alone; bounded, resumable, and never hanging.

use megatrain_data::{
    Batches, DocumentSource, Documents, DocumentsBuilder, Error, IGNORE, PackOptions, Packer, Position, Room,
    StepBatch, StreamBatches, StreamOptions,
};
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PACK: PackOptions =
    PackOptions { seq_len: 8, seed: 1, shuffle: true, pack_texts: true, pack_lines: false, group_by_length: None };

const OPTIONS: StreamOptions =
    StreamOptions { pack: PACK, batch_size: 4, buffer_size: 10, buffer_tokens: 1000, first_tokens: u64::MAX };

/// Documents in memory, read some at a time.
#[derive(Clone, Default)]
struct Source {
    documents: Arc<Documents>,
    /// Documents given at a time at the most; 0: as many as asked for.
    at_a_time: usize,
    pause: Duration,
    /// Where reading fails or panics, instead of going on.
    fails_at: Option<usize>,
    panics_at: Option<usize>,
    next: usize,
    /// Documents given so far, in all passes. Shared with the test, which also sees when the source is gone.
    given: Arc<AtomicUsize>,
}

impl Source {
    /// Texts of these lengths whose tokens are 0, 1, 2, ... over all of them; every third one has labels.
    fn counting(lens: &[usize]) -> Source {
        let mut builder = DocumentsBuilder::in_memory(vec!["counted".into()]);
        let mut next = 0..;
        for (i, &len) in lens.iter().enumerate() {
            let tokens: Vec<i32> = next.by_ref().take(len).collect();
            builder.push(&tokens, (i % 3 == 2 && len <= PACK.seq_len).then_some(&tokens), 0, i as u64 + 1).unwrap();
        }
        Source { documents: Arc::new(builder.finish()), ..Source::default() }
    }
}

impl DocumentSource for Source {
    type Error = Error;
    /// Documents in the window.
    type Notes = usize;

    fn begin(&mut self) -> Result<Vec<PathBuf>, Error> {
        self.next = 0;
        Ok(self.documents.files().to_vec())
    }

    fn read(&mut self, room: Room, into: &mut DocumentsBuilder) -> Result<bool, Error> {
        assert!(room.documents > 0 && room.tokens > 0);
        std::thread::sleep(self.pause);
        let most = if self.at_a_time == 0 { room.documents } else { room.documents.min(self.at_a_time) };
        let tokens = into.tokens();
        for _ in 0..most {
            if self.fails_at == Some(self.next) {
                return Err(Error::Invalid(format!("document {} is damaged", self.next)));
            }
            assert!(self.panics_at != Some(self.next), "a bug at {}", self.next);
            if self.next == self.documents.len() {
                return Ok(false);
            }
            let doc = self.documents.get(self.next);
            into.push(doc.tokens, doc.labels, doc.file, doc.line)?;
            self.next += 1;
            self.given.fetch_add(1, Ordering::SeqCst);
            if into.tokens() >= tokens + room.tokens {
                break;
            }
        }
        Ok(true)
    }

    fn notes(&mut self, window: &Documents) -> usize {
        window.len()
    }
}

fn stream(source: &Source, options: StreamOptions) -> StreamBatches<Source> {
    StreamBatches::new(source.clone(), options).unwrap()
}

fn steps(stream: &mut StreamBatches<Source>, count: usize) -> Vec<StepBatch> {
    (0..count).map(|_| stream.next_step().unwrap()).collect()
}

/// The steps of so many epochs.
fn epochs(source: &Source, options: StreamOptions, count: u64) -> Vec<Vec<StepBatch>> {
    let mut stream = stream(source, options);
    let mut epochs = vec![Vec::new(); count as usize];
    loop {
        let step = stream.next_step().unwrap();
        match epochs.get_mut(step.epoch as usize) {
            Some(epoch) => epoch.push(step),
            None => return epochs,
        }
    }
}

/// What the same documents give without a stream.
fn whole(source: &Source, options: StreamOptions, count: usize) -> Vec<StepBatch> {
    let packer = Packer::new(source.documents.clone(), options.pack).unwrap();
    Batches::new(packer, options.batch_size).unwrap().take(count).collect()
}

fn check_epoch(source: &Source, options: StreamOptions, steps: &[StepBatch]) {
    let (last, full) = steps.split_last().unwrap();
    assert!(full.iter().all(|step| step.sequences.len() == options.batch_size), "only the last may be smaller");
    assert!((1..=options.batch_size).contains(&last.sequences.len()));
    // Where a target is due: everywhere but at the last place of each piece.
    let mut due = vec![None; source.documents.tokens() as usize];
    for doc in source.documents.iter() {
        for piece in doc.tokens.chunks(options.pack.seq_len) {
            for (i, &token) in piece.iter().enumerate() {
                due[token as usize] = Some(piece.get(i + 1).copied().unwrap_or(IGNORE));
            }
        }
    }
    for sequence in steps.iter().flat_map(|step| &step.sequences) {
        assert!(sequence.tokens.len() <= options.pack.seq_len);
        assert_eq!(sequence.doc_lens.iter().sum::<u32>() as usize, sequence.tokens.len());
        for (&token, &target) in sequence.tokens.iter().zip(&sequence.targets) {
            assert_eq!(due[token as usize].take(), Some(target), "token {token} once, with its own successor");
        }
    }
    assert!(due.iter().all(Option::is_none), "every token");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn each_epoch_has_every_document_once_and_can_be_resumed_anywhere(
        lens in prop::collection::vec(1usize..20, 1..60),
        (batch_size, buffer_size, buffer_tokens) in (1usize..6, 1usize..30, 1u64..200),
        (at_a_time, seed, resumed) in (0usize..5, 0u64..3, 0usize..1000),
        first_tokens in prop_oneof![1u64..100, Just(u64::MAX)],
        (shuffle, pack_texts, pack_lines, group) in any::<(bool, bool, bool, bool)>(),
    ) {
        prop_assume!(lens.iter().any(|&len| len > 1));
        let group_by_length = group.then_some(7);
        let pack = PackOptions { seed, shuffle, pack_texts, pack_lines, group_by_length, ..PACK };
        let options = StreamOptions { pack, batch_size, buffer_size, buffer_tokens, first_tokens };
        let source = Source { at_a_time, ..Source::counting(&lens) };
        let all = epochs(&source, options, 3);
        for epoch in &all {
            check_epoch(&source, options, epoch);
        }
        let all = all.concat();
        prop_assert_eq!(&steps(&mut stream(&source, options), all.len()), &all, "again");

        let (at, mut begun) = (resumed % all.len(), stream(&source, options));
        steps(&mut begun, at);
        let mut later = stream(&source, options);
        later.seek(begun.state()).unwrap();
        prop_assert_eq!(&steps(&mut later, all.len() - at), &all[at..], "from step {}", at);
        // The same stream can go back, too.
        begun.seek(Position::default()).unwrap();
        prop_assert_eq!(&steps(&mut begun, at + 1), &all[..=at]);
    }

    #[test]
    fn data_in_one_window_has_the_order_that_it_has_without_a_stream(
        lens in prop::collection::vec(1usize..20, 2..60),
        (batch_size, seed) in (1usize..6, 0u64..9),
        (shuffle, pack_texts) in any::<(bool, bool)>(),
    ) {
        prop_assume!(lens.iter().any(|&len| len > 1));
        let pack = PackOptions { seed, shuffle, pack_texts, ..PACK };
        let options = StreamOptions { pack, batch_size, buffer_size: 1000, buffer_tokens: 10_000, first_tokens: u64::MAX };
        let source = Source::counting(&lens);
        prop_assert_eq!(steps(&mut stream(&source, options), 40), whole(&source, options, 40));
        // Beginning with small windows is an affair of the first epoch.
        let quick = StreamOptions { first_tokens: 1, ..options };
        let later = |epochs: Vec<Vec<StepBatch>>| epochs[1..].concat();
        prop_assert_eq!(later(epochs(&source, quick, 3)), later(epochs(&source, options, 3)));
    }

    #[test]
    fn in_file_order_and_unpacked_windows_make_no_difference(
        lens in prop::collection::vec(1usize..20, 2..60),
        (batch_size, buffer_size) in (1usize..6, 1usize..30),
    ) {
        prop_assume!(lens.iter().any(|&len| len > 1));
        let pack = PackOptions { shuffle: false, pack_texts: false, ..PACK };
        let options = StreamOptions { pack, batch_size, buffer_size, first_tokens: 1, ..OPTIONS };
        let source = Source::counting(&lens);
        prop_assert_eq!(steps(&mut stream(&source, options), 60), whole(&source, options, 60));
    }
}

#[test]
fn neither_speed_nor_threads_matter() {
    let source = Source::counting(&[5, 3, 9, 1, 8, 2, 7].repeat(20));
    let want = steps(&mut stream(&source, OPTIONS), 60);
    let slow = Source { pause: Duration::from_millis(3), ..source.clone() };
    assert_eq!(steps(&mut stream(&slow, OPTIONS), 60), want, "a slow source");
    let mut unhurried = stream(&source, OPTIONS);
    let taken: Vec<_> = (0..60)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(2));
            unhurried.next_step().unwrap()
        })
        .collect();
    assert_eq!(taken, want, "a slow reader of steps");
    let mut impatient = stream(&slow, OPTIONS);
    let mut polled = Vec::new();
    let mut misses = 0;
    while polled.len() < 60 {
        match impatient.poll_step(Duration::ZERO).unwrap() {
            Some(step) => polled.push(step),
            None => misses += 1,
        }
    }
    assert!(misses > 0 && polled == want, "asked without waiting, {misses} times in vain");
}

#[test]
fn windows_differ_in_order_and_so_do_epochs_and_seeds() {
    // Equal lengths: the order within a window is the order of its documents.
    let source = Source::counting(&[7; 40]);
    let order = |options: StreamOptions, epoch: usize| -> Vec<i32> {
        let steps = &epochs(&source, options, epoch as u64 + 1)[epoch];
        steps.iter().flat_map(|step| &step.sequences).map(|sequence| sequence.tokens[0] / 7).collect()
    };
    let first = order(OPTIONS, 0);
    let windows: Vec<Vec<i32>> =
        first.chunks(10).enumerate().map(|(i, w)| w.iter().map(|doc| doc - 10 * i as i32).collect()).collect();
    for (i, window) in windows.iter().enumerate() {
        let mut sorted = window.clone();
        sorted.sort();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>(), "window {i} has its own documents");
        assert!(windows[..i].iter().all(|other| other != window));
    }
    assert_ne!(first, order(OPTIONS, 1));
    assert_ne!(first, order(StreamOptions { pack: PackOptions { seed: 2, ..PACK }, ..OPTIONS }, 0));
    // The order is part of what a seed promises; a change here changes every seeded run.
    assert_eq!([&first[..5], &first[10..15]], [&[7, 4, 3, 8, 5], &[16, 15, 18, 12, 19]]);
}

#[test]
fn the_first_windows_are_small_and_double() {
    let source = Source { at_a_time: 1, ..Source::counting(&[8; 200]) };
    let sizes = |options| {
        let mut stream = stream(&source, options);
        let mut notes = Vec::new();
        while stream.epochs_done() < 2 {
            stream.next_step().unwrap();
            notes.extend(stream.take_notes());
        }
        notes
    };
    let quick = StreamOptions { buffer_size: 50, first_tokens: 1, ..OPTIONS };
    let growing = [(0, 4), (0, 8), (0, 16), (0, 32), (0, 50), (0, 50), (0, 40)];
    let full = [(1, 50), (1, 50), (1, 50), (1, 50)];
    let seen = sizes(quick);
    assert_eq!(seen[..7], growing);
    assert_eq!(seen[7..11], full);
    let by_tokens = StreamOptions { buffer_size: 1000, buffer_tokens: 400, ..OPTIONS };
    assert_eq!(sizes(by_tokens)[..4], [(0, 50); 4]);
    let larger = StreamOptions { first_tokens: 160, ..quick };
    assert_eq!(sizes(larger)[..3], [(0, 20), (0, 40), (0, 50)]);
    // A window is never smaller than a step, whatever the options.
    let tiny = StreamOptions { buffer_size: 1, buffer_tokens: 1, ..OPTIONS };
    assert_eq!(sizes(tiny)[..3], [(0, 4); 3]);
}

#[test]
fn little_is_read_ahead() {
    let source = Source::counting(&[8; 1000]);
    let mut stream = stream(&source, OPTIONS);
    std::thread::sleep(Duration::from_millis(100));
    for step in 1..100 {
        stream.next_step().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let (handed_out, read) = (4 * step, source.given.load(Ordering::SeqCst));
        // The window of the step, and the next one.
        assert!(read <= (handed_out as usize).next_multiple_of(10) + 10, "{read} read for {handed_out}");
    }
}

#[test]
fn what_was_read_before_an_error_is_handed_out() {
    let source = Source { fails_at: Some(35), ..Source::counting(&[8; 40]) };
    let mut broken = stream(&source, OPTIONS);
    let got: Vec<StepBatch> = std::iter::from_fn(|| broken.next_step().ok()).collect();
    assert_eq!(
        got.iter().map(|step| step.sequences.len()).sum::<usize>(),
        28,
        "three windows of ten, in steps of four"
    );
    let again = broken.next_step().unwrap_err().to_string();
    assert!(again.contains("ended with an error before"), "{again}");
    assert!(broken.seek(Position::default()).is_err());
    let mut broken = stream(&source, OPTIONS);
    steps(&mut broken, 7);
    assert_eq!(broken.next_step().unwrap_err().to_string(), "document 35 is damaged");
    // Nothing but the error, if it comes first.
    let source = Source { fails_at: Some(0), ..source };
    assert_eq!(stream(&source, OPTIONS).ready().unwrap_err().to_string(), "document 0 is damaged");
}

#[test]
fn a_panic_while_reading_is_an_error() {
    let source = Source { panics_at: Some(25), ..Source::counting(&[8; 40]) };
    let mut broken = stream(&source, OPTIONS);
    steps(&mut broken, 5);
    let error = broken.next_step().unwrap_err().to_string();
    assert!(error.contains("not of the data") && error.ends_with("a bug at 25"), "{error}");
    assert!(broken.next_step().is_err());
    let mut broken = stream(&source, OPTIONS);
    std::thread::sleep(Duration::from_millis(20));
    drop((broken.next_step(), broken));
    assert_eq!(Arc::strong_count(&source.given), 1);
}

#[test]
fn a_dropped_stream_leaves_no_thread() {
    let endless = Source { pause: Duration::from_millis(1), ..Source::counting(&[8; 10_000]) };
    // Before it has a window, while one waits to be taken, and in the middle of the next.
    for (options, taken) in [(StreamOptions { buffer_size: 9000, ..OPTIONS }, 0), (OPTIONS, 0), (OPTIONS, 3)] {
        let source = Source { at_a_time: 1, ..endless.clone() };
        let mut stream = stream(&source, StreamOptions { buffer_tokens: u64::MAX, ..options });
        steps(&mut stream, taken);
        std::thread::sleep(Duration::from_millis(30));
        let begun = Instant::now();
        drop(stream);
        assert!(begun.elapsed() < Duration::from_secs(1), "it waited for the whole window");
    }
    assert_eq!(Arc::strong_count(&endless.given), 1, "the thread has ended and its source is gone");
}

#[test]
fn data_without_anything_to_learn_is_an_error_and_a_part_without_is_none() {
    for lens in [&[1; 90][..], &[]] {
        let mut stream = stream(&Source::counting(lens), OPTIONS);
        let (mut before, mut error) = (0, None);
        while error.is_none() {
            match stream.next_step() {
                Ok(step) => before += step.sequences.iter().map(|sequence| sequence.tokens.len()).sum::<usize>(),
                Err(found) => error = Some(found.to_string()),
            }
        }
        assert!(before <= lens.len(), "not once around");
        let want = format!("no target to learn in {} documents", lens.len());
        assert!(error.as_ref().is_some_and(|error| error.contains(&want)), "{error:?}");
    }
    let lens = [&[1; 100][..], &[5]].concat();
    let source = Source::counting(&lens);
    let all = epochs(&source, OPTIONS, 2);
    assert_eq!(all[1].iter().map(|step| step.targets).sum::<u64>(), 4);
    check_epoch(&source, OPTIONS, &all[1]);
}

#[test]
fn wrong_options_and_positions_are_refused() {
    let source = Source::counting(&[8; 10]);
    let error = |options| StreamBatches::new(source.clone(), options).err().unwrap().to_string();
    assert_eq!(error(StreamOptions { batch_size: 0, ..OPTIONS }), "--batch-size must be at least 1");
    assert_eq!(error(StreamOptions { buffer_size: 0, ..OPTIONS }), "--buffer-size must be at least 1");
    let short = PackOptions { seq_len: 1, ..PACK };
    assert!(error(StreamOptions { pack: short, ..OPTIONS }).starts_with("--seq-len must be at least 2"));

    let beyond = stream(&source, OPTIONS).seek(Position { epoch: 1, sequence: 11 }).unwrap_err().to_string();
    assert!(beyond.starts_with("cannot continue at sequence 11 of epoch 1, which has only 10"), "{beyond}");
    let mut at_the_end = stream(&source, OPTIONS);
    at_the_end.seek(Position { epoch: 1, sequence: 10 }).unwrap();
    let step = at_the_end.next_step().unwrap();
    assert_eq!((step.epoch, step.sequences.len()), (2, 4), "the end of one epoch is the beginning of the next");
    assert_eq!(at_the_end.take_notes(), [(1, 0), (2, 10)], "nothing of what was skipped");
}
