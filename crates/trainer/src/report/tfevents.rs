//! [`EventFile`]: figures for TensorBoard, in the format of TensorFlow's event files.
//!
//! A file is a sequence of records: the length of the data as u64, a checksum of those 8 bytes as u32, the data, a
//! checksum of the data; all little-endian. The checksum is CRC-32C, rotated right by 15 bits plus a constant, as the
//! format's authors feared data that contains its own checksum. The data is an `Event` message of protocol buffers
//! (`tensorflow/core/util/event.proto`, `framework/summary.proto`), of which a few fields are written here by hand.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Marks the files that we wrote and may replace.
const SUFFIX: &str = ".megatrain";

/// An event file that is being written. Each call hands a whole record to the system, so that TensorBoard can follow.
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Begins a file in this folder. Files of earlier runs in it are removed: as `metrics.jsonl`, it holds one run.
    ///
    /// # Errors
    /// If the folder or the file cannot be made.
    pub fn create(dir: &Path) -> Result<Self> {
        let at = || format!("in {}", dir.display());
        std::fs::create_dir_all(dir).with_context(at)?;
        for entry in std::fs::read_dir(dir).with_context(at)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.contains("tfevents") && name.ends_with(SUFFIX) {
                std::fs::remove_file(entry.path()).with_context(|| format!("removing {}", entry.path().display()))?;
            }
        }
        let seconds = now_s();
        // TensorBoard finds files by the word in their name, and orders them by the time after it.
        let path = dir.join(format!("events.out.tfevents.{:.0}.{}{SUFFIX}", seconds.floor(), std::process::id()));
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        let mut events = EventFile { path, file };
        let mut event = Message::default();
        event.double(1, seconds).bytes(3, b"brain.Event:2");
        events.record(&event)?;
        Ok(events)
    }

    /// Adds figures of a step.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> Result<()> {
        let mut summary = Message::default();
        for (tag, value) in values {
            let mut message = Message::default();
            message.bytes(1, tag.as_bytes()).float(2, *value as f32);
            summary.message(1, &message);
        }
        self.summary(step, &summary)
    }

    /// Adds a text of a step, which TensorBoard shows as Markdown.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn text(&mut self, step: u64, tag: &str, text: &str) -> Result<()> {
        let [mut plugin, mut metadata, mut dim, mut shape, mut tensor, mut value, mut summary] =
            std::array::from_fn(|_| Message::default());
        plugin.bytes(1, b"text");
        metadata.message(1, &plugin);
        dim.varint(1, 1);
        shape.message(2, &dim);
        const DT_STRING: u64 = 7;
        tensor.varint(1, DT_STRING).message(2, &shape).bytes(8, text.as_bytes());
        value.bytes(1, tag.as_bytes()).message(8, &tensor).message(9, &metadata);
        summary.message(1, &value);
        self.summary(step, &summary)
    }

    fn summary(&mut self, step: u64, summary: &Message) -> Result<()> {
        let mut event = Message::default();
        event.double(1, now_s()).varint(2, step).message(5, summary);
        self.record(&event)
    }

    fn record(&mut self, event: &Message) -> Result<()> {
        self.file.write_all(&record(&event.0)).with_context(|| format!("writing {}", self.path.display()))
    }
}

/// Seconds since 1970.
fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

fn record(data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u64).to_le_bytes();
    [&len, &masked(&len).to_le_bytes()[..], data, &masked(data).to_le_bytes()].concat()
}

fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: events are a few hundred bytes a step.
fn crc32c(data: &[u8]) -> u32 {
    const REVERSED_POLYNOMIAL: u32 = 0x82f6_3b78;
    !data.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (REVERSED_POLYNOMIAL & 0u32.wrapping_sub(crc & 1)))
    })
}

/// A message of protocol buffers: each field its number and wire type, then its value.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    const VARINT: u64 = 0;
    const FIXED64: u64 = 1;
    const BYTES: u64 = 2;
    const FIXED32: u64 = 5;

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u64, wire: u64) {
        self.raw_varint(field << 3 | wire);
    }

    fn varint(&mut self, field: u64, value: u64) -> &mut Self {
        self.key(field, Self::VARINT);
        self.raw_varint(value);
        self
    }

    fn double(&mut self, field: u64, value: f64) -> &mut Self {
        self.key(field, Self::FIXED64);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn float(&mut self, field: u64, value: f32) -> &mut Self {
        self.key(field, Self::FIXED32);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(&mut self, field: u64, value: &[u8]) -> &mut Self {
        self.key(field, Self::BYTES);
        self.raw_varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn message(&mut self, field: u64, value: &Message) -> &mut Self {
        self.bytes(field, &value.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A field of a message, as a reader that knows the wire format alone sees it.
    #[derive(Debug, PartialEq)]
    enum Field {
        Varint(u64),
        Fixed64(f64),
        Bytes(Vec<u8>),
        Fixed32(f32),
    }

    impl Field {
        fn fields(&self) -> BTreeMap<u64, Field> {
            match self {
                Field::Bytes(bytes) => parse(bytes),
                other => panic!("no message: {other:?}"),
            }
        }
    }

    fn parse(mut data: &[u8]) -> BTreeMap<u64, Field> {
        fn varint(data: &mut &[u8]) -> u64 {
            let mut value = 0;
            for shift in (0..64).step_by(7) {
                let byte = data[0];
                *data = &data[1..];
                value |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    return value;
                }
            }
            panic!("a varint without end")
        }
        fn take<'a>(data: &mut &'a [u8], len: usize) -> &'a [u8] {
            let (head, tail) = data.split_at(len);
            *data = tail;
            head
        }
        let mut fields = BTreeMap::new();
        while !data.is_empty() {
            let key = varint(&mut data);
            let field = match key & 7 {
                0 => Field::Varint(varint(&mut data)),
                1 => Field::Fixed64(f64::from_le_bytes(take(&mut data, 8).try_into().unwrap())),
                2 => {
                    let len = varint(&mut data) as usize;
                    Field::Bytes(take(&mut data, len).to_vec())
                }
                5 => Field::Fixed32(f32::from_le_bytes(take(&mut data, 4).try_into().unwrap())),
                wire => panic!("wire type {wire}"),
            };
            assert!(fields.insert(key >> 3, field).is_none(), "field {} twice", key >> 3);
        }
        fields
    }

    fn events(dir: &Path) -> Vec<BTreeMap<u64, Field>> {
        let files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
        let [file] = &files[..] else { panic!("{files:?}") };
        let bytes = std::fs::read(file).unwrap();
        let mut rest = &bytes[..];
        let mut events = Vec::new();
        while !rest.is_empty() {
            let len = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(u32::from_le_bytes(rest[8..12].try_into().unwrap()), masked(&rest[..8]));
            let data = &rest[12..12 + len];
            assert_eq!(u32::from_le_bytes(rest[12 + len..16 + len].try_into().unwrap()), masked(data));
            events.push(parse(data));
            rest = &rest[16 + len..];
        }
        events
    }

    #[test]
    fn the_checksum_is_the_one_of_rfc_3720() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_record_is_the_one_that_tensorboard_writes() {
        // import io; from tensorboard.summary.writer.record_writer import RecordWriter
        // from tensorboard.compat.proto.event_pb2 import Event; f = io.BytesIO()
        // RecordWriter(f).write(Event(wall_time=2.5, file_version="brain.Event:2").SerializeToString()); f.getvalue().hex()
        let mut event = Message::default();
        event.double(1, 2.5).bytes(3, b"brain.Event:2");
        let hex: String = record(&event.0).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, GOLDEN);
    }
    const GOLDEN: &str = "1800000000000000a37f4b220900000000000004401a0d627261696e2e4576656e743a32b19bcaec";

    #[test]
    fn figures_and_texts_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("events.out.tfevents.1.2.megatrain"), "of an earlier run").unwrap();
        let mut file = EventFile::create(dir.path()).unwrap();
        file.scalars(300, &[("train/loss", 1.5), ("train/lr", f64::NAN)]).unwrap();
        file.text(301, "eval/sample", "äöü <b>").unwrap();
        let events = events(dir.path());
        assert_eq!(events[0][&3], Field::Bytes(b"brain.Event:2".to_vec()));
        let Field::Fixed64(wall_time) = events[1][&1] else { panic!() };
        assert!((now_s() - wall_time).abs() < 60.0);
        assert_eq!(events[1][&2], Field::Varint(300));
        // Two values share field 1 of the summary, which `parse` refuses: look at each alone.
        let Field::Bytes(summary) = &events[1][&5] else { panic!() };
        let len = summary[1] as usize;
        let first = parse(&summary[2..2 + len]);
        assert_eq!(first[&1], Field::Bytes(b"train/loss".to_vec()));
        assert_eq!(first[&2], Field::Fixed32(1.5));
        let Field::Fixed32(lr) = parse(&summary[4 + len..])[&2] else { panic!() };
        assert!(lr.is_nan());
        let value = events[2][&5].fields()[&1].fields();
        assert_eq!(value[&1], Field::Bytes(b"eval/sample".to_vec()));
        assert_eq!(value[&9].fields()[&1].fields()[&1], Field::Bytes(b"text".to_vec()));
        let tensor = value[&8].fields();
        assert_eq!((&tensor[&1], &tensor[&8]), (&Field::Varint(7), &Field::Bytes("äöü <b>".into())));
        assert_eq!(tensor[&2].fields()[&2].fields()[&1], Field::Varint(1));
    }
}
