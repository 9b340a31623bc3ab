//! Choices remembered between runs: one text file for each GPU, cuBLASLt and driver, written whole and renamed into place.
//!
//! ```text
//! megatrain products 1
//! NVIDIA H200, compute capability 9.0, 132 multiprocessors, cuBLASLt 130401, driver 13000
//! KEY <tab> MICROSECONDS <tab> ALGORITHM, 128 hex digits
//! checksum 16 HEX DIGITS
//! ```
//!
//! A file that is damaged or written for another machine is left unused, with a sentence that says so, and replaced when
//! there is something to remember. Nothing here is ever an error: without the file, products are timed again.

use super::key::Key;
use crate::cublaslt::Algorithm;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const FIRST_LINE: &str = "megatrain products 1";
/// Far more than any file of ours: a longer one is not read.
const MAX_BYTES: u64 = 16 << 20;

/// What choices hold for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Machine {
    pub(super) gpu: String,
    pub(super) capability: (u32, u32),
    pub(super) multiprocessors: u32,
    /// As cuBLASLt states it, e.g. 130401.
    pub(super) cublaslt: usize,
    /// The CUDA version of the driver, e.g. 13000.
    pub(super) driver: u32,
}

impl Machine {
    fn file_name(&self) -> String {
        let gpu: String =
            self.gpu.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
        format!("products-{gpu}-{}-cublaslt{}-driver{}.txt", self.multiprocessors, self.cublaslt, self.driver)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpu = self.gpu.replace(char::is_control, " ");
        let (major, minor) = self.capability;
        write!(f, "{gpu}, compute capability {major}.{minor}, {} multiprocessors, ", self.multiprocessors)?;
        write!(f, "cuBLASLt {}, driver {}", self.cublaslt, self.driver)
    }
}

/// An algorithm and the median time that won it its place.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Entry {
    pub(super) algorithm: Algorithm,
    pub(super) us: f64,
}

type Entries = HashMap<Key, Entry>;

/// The remembered choices of one machine.
#[derive(Debug)]
pub(super) struct Cache {
    /// `None`: nothing is remembered.
    file: Option<PathBuf>,
    machine: Machine,
    entries: Entries,
    refused: HashSet<Key>,
}

impl Cache {
    /// Reads the machine's file in `folder`, if there is one. The sentence says why it is not used, if so.
    pub(super) fn open(folder: Option<&Path>, machine: Machine) -> (Cache, Option<String>) {
        let file = folder.map(|folder| folder.join(machine.file_name()));
        let (entries, note) = match file.as_deref().map(|file| read(file, &machine)) {
            Some(Ok(entries)) => (entries, None),
            Some(Err(reason)) => (Entries::new(), Some(reason)),
            None => (Entries::new(), None),
        };
        (Cache { file, machine, entries, refused: HashSet::new() }, note)
    }

    /// Whether there is a file.
    pub(super) fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Adds what others have written since. What is known here stays.
    pub(super) fn refresh(&mut self) {
        // A file that became unreadable was told, or will be when it is written.
        let written = self.file.as_deref().and_then(|file| read(file, &self.machine).ok()).unwrap_or_default();
        for (key, entry) in written.into_iter().filter(|(key, _)| !self.refused.contains(key)) {
            self.entries.entry(key).or_insert(entry);
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Drops an entry that cuBLASLt does not accept; the next [`Cache::remember`] drops it from the file.
    pub(super) fn refuse(&mut self, key: Key) {
        self.entries.remove(&key);
        self.refused.insert(key);
    }

    /// Adds entries to the file. What another process has written meanwhile stays, so that every later run makes the same
    /// choices as that one.
    ///
    /// # Errors
    /// A sentence: why nothing can be remembered.
    pub(super) fn remember(&mut self, new: &[(Key, Entry)]) -> Result<(), String> {
        let Some(file) = self.file.as_deref().filter(|_| !new.is_empty()) else { return Ok(()) };
        let failed = |e: io::Error| format!("cannot remember the algorithms of products in {}: {e}", file.display());
        let folder = file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(failed)?;
        // Held until the end. Where files cannot be locked, two writers at once may lose entries, which are then timed again.
        let lock = File::create(folder.join("products.lock"));
        let _ = lock.as_ref().map(File::lock);
        let mut merged = read(file, &self.machine).unwrap_or_default();
        merged.retain(|key, _| !self.refused.contains(key));
        for &(key, entry) in new {
            merged.entry(key).or_insert(entry);
        }
        let partial = file.with_extension(format!("{}.partial", std::process::id()));
        let written = fs::write(&partial, text(&self.machine, &merged)).and_then(|()| fs::rename(&partial, file));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        self.entries = merged;
        self.refused.clear();
        written.map_err(failed)
    }
}

/// The folder of remembered choices: MEGATRAIN_CACHE (`off`: none), or `megatrain` in XDG_CACHE_HOME or `~/.cache`.
pub(super) fn default_folder() -> Option<PathBuf> {
    folder_by(|name| std::env::var_os(name))
}

fn folder_by(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    match set("MEGATRAIN_CACHE") {
        Some(value) if value == "off" => None,
        Some(value) => Some(value.into()),
        // The XDG specification has relative paths ignored.
        None => set("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))
            .map(|cache| cache.join("megatrain")),
    }
}

/// No entries where there is no file.
fn read(file: &Path, machine: &Machine) -> Result<Entries, String> {
    let bytes = match fs::metadata(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Entries::new()),
        Ok(metadata) if metadata.len() > MAX_BYTES => Err("it is too long".to_owned()),
        _ => fs::read(file).map_err(|e| e.to_string()),
    };
    bytes
        .and_then(|bytes| parse(&bytes, machine))
        .map_err(|reason| format!("the algorithms of products remembered in {} are not used: {reason}", file.display()))
}

fn parse(bytes: &[u8], machine: &Machine) -> Result<Entries, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
    let (first, rest) = text.split_once('\n').ok_or("it is empty or cut off")?;
    if first != FIRST_LINE {
        return Err(format!("it should begin with \"{FIRST_LINE}\""));
    }
    let last = rest.strip_suffix('\n').ok_or("it is cut off")?.rsplit('\n').next().unwrap_or_default();
    let body = &text[..text.len() - last.len() - 1];
    if last != checksum_line(body) {
        return Err("its checksum is wrong".into());
    }
    let mut lines = body.lines().skip(1);
    let (here, written_for) = (machine.to_string(), lines.next().unwrap_or_default());
    if written_for != here {
        return Err(format!("they were chosen for {written_for}; this is {here}"));
    }
    lines.zip(3..).map(|(line, n)| parse_entry(line).ok_or(format!("line {n} is no entry"))).collect()
}

fn parse_entry(line: &str) -> Option<(Key, Entry)> {
    let mut fields = line.split('\t');
    let (key, us, algorithm) = (fields.next()?, fields.next()?, fields.next()?);
    let us = us.parse().ok().filter(|us: &f64| us.is_finite() && *us >= 0.0)?;
    let entry = Entry { algorithm: Algorithm::from_hex(algorithm)?, us };
    fields.next().is_none().then_some((Key::parse(key)?, entry))
}

fn text(machine: &Machine, entries: &Entries) -> String {
    // In the order of their text, so that the same entries are the same file.
    let lines: BTreeMap<String, String> = entries
        .iter()
        .map(|(key, entry)| (key.to_string(), format!("{:.3}\t{}", entry.us, entry.algorithm.hex())))
        .collect();
    let mut text = format!("{FIRST_LINE}\n{machine}\n");
    for (key, rest) in lines {
        text += &format!("{key}\t{rest}\n");
    }
    let checksum = checksum_line(&text);
    text + &checksum + "\n"
}

/// FNV-1a: against bytes lost or flipped, not against malice.
fn checksum_line(body: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    format!("checksum {:016x}", body.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let gpu = "NVIDIA H200".into();
        Machine { gpu, capability: (9, 0), multiprocessors: 132, cublaslt: 130_401, driver: 13_000 }
    }

    fn entry(i: u64) -> (Key, Entry) {
        let key = Key::parse(&format!("m={} n=8 k=3 a=bf16@16 b^T=bf16@256 c+=f32@4", i + 1)).unwrap();
        let algorithm =
            Algorithm { data: std::array::from_fn(|j| 0x0123_4567_89ab_cdef_u64.rotate_left(8 * j as u32) + i) };
        (key, Entry { algorithm, us: 12.5 * i as f64 })
    }

    fn open(folder: &Path, machine: &Machine) -> (Cache, Option<String>) {
        Cache::open(Some(folder), machine.clone())
    }

    /// A folder with a file of the entries `0..n`, and the file.
    fn written(n: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (mut cache, note) = open(folder.path(), &machine());
        assert_eq!(note, None);
        cache.remember(&(0..n).map(entry).collect::<Vec<_>>()).unwrap();
        let file = folder.path().join(machine().file_name());
        (folder, file)
    }

    /// The sentence about a file with these contents, which yields no entries and can be replaced.
    #[track_caller]
    fn refused(contents: &[u8]) -> String {
        let (folder, file) = written(0);
        fs::write(&file, contents).unwrap();
        let (mut cache, note) = open(folder.path(), &machine());
        let note = note.expect("a sentence");
        assert!(cache.entries.is_empty() && note.contains(&file.display().to_string()), "{note}");
        cache.remember(&[entry(7)]).unwrap();
        let (cache, again) = open(folder.path(), &machine());
        assert_eq!((cache.get(&entry(7).0), again), (Some(&entry(7).1), None), "replaced after: {note}");
        note
    }

    /// A second runner, opened before the first has chosen, must make the first one's choices: otherwise the two round
    /// differently.
    #[test]
    fn what_others_wrote_since_is_found_and_what_is_known_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [mut early, mut late] = [0, 1].map(|_| open(folder.path(), &machine()).0);
        let (key, chosen) = entry(1);
        early.remember(&[(key, chosen)]).unwrap();
        assert_eq!(late.get(&key), None);
        late.refresh();
        assert_eq!(late.get(&key), Some(&chosen));
        let other = Entry { us: 1.0, ..entry(2).1 };
        fs::remove_file(folder.path().join(machine().file_name())).unwrap();
        early.remember(&[(key, other)]).unwrap();
        late.refresh();
        assert_eq!(late.get(&key), Some(&chosen));
        late.refuse(key);
        late.refresh();
        assert_eq!(late.get(&key), None, "what cuBLASLt refused is not taken again");
    }

    #[test]
    fn what_is_remembered_is_read_back_bit_for_bit() {
        let (folder, file) = written(5);
        let (cache, note) = open(folder.path(), &machine());
        assert_eq!((cache.entries.len(), note), (5, None));
        for (key, entry) in (0..5).map(entry) {
            assert_eq!(cache.get(&key), Some(&entry));
        }
        assert_eq!(cache.get(&entry(5).0), None);
        let text = fs::read_to_string(file).unwrap();
        assert!(text.starts_with("megatrain products 1\nNVIDIA H200, compute capability 9.0, 132 multi"), "{text}");
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["products-nvidia-h200-132-cublaslt130401-driver13000.txt", "products.lock"]);
    }

    #[test]
    fn damaged_files_are_left_unused_with_a_sentence_and_replaced() {
        let (_folder, file) = written(3);
        let good = fs::read(file).unwrap();
        let text = String::from_utf8(good.clone()).unwrap();
        for end in (0..good.len()).step_by(5).chain([good.len() - 1]) {
            refused(&good[..end]);
        }
        for (i, flip) in [(0, 1), (30, 2), (200, 4), (300, 0x80), (good.len() - 2, 1)] {
            let mut bad = good.clone();
            bad[i] ^= flip;
            refused(&bad);
        }
        assert!(refused(b"").contains("empty"));
        assert!(refused(b"{\"json\": 1}\n").contains("megatrain products 1"));
        assert!(refused(text.replace("12.500", "13.500").as_bytes()).contains("checksum"));
        assert!(refused(&[good.as_slice(), b"\n"].concat()).contains("checksum"));
        assert!(refused(&[0xff; 100]).contains("not text"));
    }

    #[test]
    fn entries_that_make_no_sense_are_refused_even_with_a_right_checksum() {
        let line = text(&machine(), &[entry(1)].into()).lines().nth(2).unwrap().to_owned();
        for bad in [
            line.replace("12.500", "NaN"),
            line.replace("12.500", "-1"),
            line.replace('\t', " "),
            line.replace("m=2", "m=two"),
            line[..line.len() - 1].to_owned(),
            line.clone() + "0",
            line.clone() + "\t",
            line[..line.len() - 1].to_owned() + "g",
            line[..line.len() - 2].to_owned() + "é",
            line[..line.len() - 2].to_owned() + "+1",
            String::new(),
        ] {
            let body = format!("{FIRST_LINE}\n{}\n{bad}\n", machine());
            let note = refused(format!("{body}{}\n", checksum_line(&body)).as_bytes());
            assert!(note.contains("line 3 is no entry"), "{bad}: {note}");
        }
    }

    #[test]
    fn files_of_other_machines_and_versions_are_left_unused() {
        let (folder, file) = written(2);
        let mut others = vec![machine(); 5];
        others[0].cublaslt += 1;
        others[1].driver += 10;
        others[2].gpu = "NVIDIA H100".into();
        others[3].multiprocessors = 114;
        for other in &others[..4] {
            let (cache, note) = open(folder.path(), other);
            assert_eq!((cache.entries.len(), note), (0, None), "{other}: a file of its own");
            fs::copy(&file, folder.path().join(other.file_name())).unwrap();
        }
        // The capability stands in the file alone.
        others[4].capability = (10, 0);
        for other in &others {
            let (cache, note) = open(folder.path(), other);
            let note = note.expect("a sentence");
            assert!(cache.entries.is_empty() && note.contains(&other.to_string()), "{note}");
        }
    }

    #[test]
    fn two_writers_keep_each_others_entries_and_the_first_choice_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [mut a, mut b] = [(); 2].map(|()| open(folder.path(), &machine()).0);
        a.remember(&[entry(1), entry(2)]).unwrap();
        let other = Entry { us: 1.0, ..entry(9).1 };
        b.remember(&[(entry(2).0, other), entry(3)]).unwrap();
        let (cache, note) = open(folder.path(), &machine());
        assert_eq!((cache.entries.len(), note), (3, None));
        assert_eq!([1, 2, 3].map(|i| cache.get(&entry(i).0).copied()), [1, 2, 3].map(|i| Some(entry(i).1)));
    }

    #[test]
    fn many_writers_at_once_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for i in 0..8 {
                let folder = folder.path();
                // Processes have partial files of their own; threads of one would share it, but for the lock.
                scope.spawn(move || open(folder, &machine()).0.remember(&[entry(i)]).unwrap());
            }
        });
        assert_eq!(open(folder.path(), &machine()).0.entries.len(), 8);
    }

    #[test]
    fn a_refused_entry_gives_way_to_the_new_one() {
        let (folder, _file) = written(3);
        let (mut cache, _) = open(folder.path(), &machine());
        cache.refuse(entry(1).0);
        assert_eq!(cache.get(&entry(1).0), None);
        let new = entry(8).1;
        cache.remember(&[(entry(1).0, new)]).unwrap();
        let (cache, _) = open(folder.path(), &machine());
        assert_eq!((cache.get(&entry(1).0), cache.entries.len()), (Some(&new), 3));
    }

    #[test]
    fn without_a_folder_or_where_none_can_be_made_nothing_breaks() {
        let (mut cache, note) = Cache::open(None, machine());
        assert_eq!((cache.remember(&[entry(0)]), note), (Ok(()), None));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let (mut cache, note) = open(&file.join("cache"), &machine());
        let error = cache.remember(&[entry(0)]).unwrap_err();
        assert!(error.contains("cannot remember") && error.contains("file/cache"), "{note:?} {error}");
    }

    #[test]
    fn the_folder_follows_the_environment() {
        let folder = |set: &[(&str, &str)]| {
            let set: HashMap<&str, &str> = set.iter().copied().collect();
            folder_by(|name| set.get(name).map(OsString::from))
        };
        let home = ("HOME", "/me");
        assert_eq!(folder(&[home]), Some("/me/.cache/megatrain".into()));
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "/c")]), Some("/c/megatrain".into()));
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "c")]), Some("/me/.cache/megatrain".into()));
        assert_eq!(folder(&[home, ("MEGATRAIN_CACHE", "/x")]), Some("/x".into()));
        assert_eq!(folder(&[home, ("MEGATRAIN_CACHE", "")]), Some("/me/.cache/megatrain".into()));
        assert_eq!(folder(&[home, ("MEGATRAIN_CACHE", "off")]), None);
        assert_eq!(folder(&[]), None);
    }
}
