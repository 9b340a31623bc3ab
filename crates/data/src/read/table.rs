//! Tables, Parquet and Arrow, row by row as JSON objects: then every format is read from them as from JSON.

use super::bytes::{Counted, Counter};
use super::json::{Broken, Row};
use crate::error::{self, Error};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, DataType};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Rows that are in memory at once, of a Parquet file; Arrow files are cut by whoever wrote them.
const BATCH_ROWS: usize = 1024;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// The rows of a table, counted from 1.
pub(super) struct TableRows {
    path: PathBuf,
    batches: Batches,
    batch: Option<RecordBatch>,
    /// The next row of `batch`.
    next: usize,
    rows_before: u64,
}

impl TableRows {
    /// Opens a `.parquet` file.
    pub(super) fn parquet(path: &Path, counter: &Counter) -> Result<TableRows, Error> {
        let file = File::open(path).map_err(error::io(path, "opening"))?;
        let bytes = file.metadata().map_err(error::io(path, "opening"))?.len();
        let fail = |e| error::file(path, format!("not a readable Parquet file: {e}"));
        let mut packing = None;
        let (reader, rows) = guarded(|| {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
            let rows = builder.metadata().file_metadata().num_rows().max(1) as u64;
            packing = builder.metadata().row_groups().iter().flat_map(|group| group.columns()).find_map(not_read);
            Ok((builder.with_batch_size(BATCH_ROWS).build()?, rows))
        })
        .map_err(fail)?;
        if let Some(packing) = packing {
            return Err(error::file(
                path,
                format!("it is packed with {packing}, which is not read; write it with Snappy"),
            ));
        }
        // Pages are read as they are needed; a row stands for its share of the file.
        let (counter, mut done) = (counter.clone(), 0);
        let counted = reader.inspect(move |batch| {
            let part = batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
            counter.add(bytes * (done + part) / rows - bytes * done / rows);
            done += part;
        });
        TableRows::new(path, Box::new(counted))
    }

    /// Opens an `.arrow` file: a file with an index, or a stream.
    pub(super) fn arrow(path: &Path, counter: &Counter) -> Result<TableRows, Error> {
        let fail = |e| error::file(path, format!("not a readable Arrow file: {e}"));
        let mut reader = BufReader::new(Counted::open(path, counter)?);
        let indexed = reader.fill_buf().map_err(error::io(path, "reading"))?.starts_with(b"ARROW1");
        reader.rewind().map_err(error::io(path, "reading"))?;
        let batches = guarded(|| {
            Ok(match indexed {
                true => Box::new(FileReader::try_new(reader, None)?) as Batches,
                false => Box::new(StreamReader::try_new(reader, None)?),
            })
        })
        .map_err(fail)?;
        TableRows::new(path, batches)
    }

    fn new(path: &Path, batches: Batches) -> Result<TableRows, Error> {
        let mut rows = TableRows { path: path.to_owned(), batches, batch: None, next: 0, rows_before: 0 };
        match rows.fill() {
            Ok(true) => Ok(rows),
            Ok(false) => Err(error::file(path, "the table has no rows; remove the file or leave it out")),
            Err(e) => Err(e),
        }
    }

    /// Gets a batch that has a next row; false at the end.
    fn fill(&mut self) -> Result<bool, Error> {
        while self.batch.as_ref().is_none_or(|batch| self.next == batch.num_rows()) {
            self.rows_before += self.batch.take().map_or(0, |batch| batch.num_rows() as u64);
            self.next = 0;
            match guarded(|| self.batches.next().transpose()) {
                Ok(None) => return Ok(false),
                Ok(Some(batch)) => self.batch = Some(batch),
                Err(e) => {
                    let row = self.rows_before + 1;
                    return Err(error::line(&self.path, row, format!("cannot read from this row on: {e}")));
                }
            }
        }
        Ok(true)
    }

    /// The next row as an object.
    pub(super) fn next_row(&mut self) -> Option<Result<Row, Broken>> {
        match self.fill() {
            Ok(true) => {}
            Ok(false) => return None,
            Err(e) => return Some(Err(Broken::File(e))),
        }
        let batch = self.batch.as_ref()?;
        let schema = batch.schema_ref();
        let fields = schema.fields().iter().zip(batch.columns());
        let object = fields.map(|(field, column)| (field.name().clone(), value(column.as_ref(), self.next))).collect();
        self.next += 1;
        Some(Ok((self.rows_before + self.next as u64, Value::Object(object))))
    }
}

/// The packing of a column, if this build cannot unpack it.
fn not_read(column: &ColumnChunkMetaData) -> Option<String> {
    match column.compression() {
        Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::GZIP(_) => None,
        Compression::LZ4 | Compression::LZ4_RAW => None,
        Compression::ZSTD(_) => Some("ZSTD".to_owned()),
        other => Some(format!("{other:?}")),
    }
}

/// The libraries panic at some damaged files; then, too, the file is to be named. What panicked is not used again.
fn guarded<T>(work: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| said.to_string()));
            Err(format!("it is damaged: {}", said.unwrap_or_default()))
        }
    }
}

/// An element as JSON. Fields of inner structs that are null are left out, since a table gives every struct of a column
/// all keys that any of them has. Kinds that JSON lacks (dates, bytes) are null.
fn value(array: &dyn Array, i: usize) -> Value {
    if array.is_null(i) {
        return Value::Null;
    }
    let list = |items: &dyn Array| Value::Array((0..items.len()).map(|i| value(items, i)).collect());
    match array.data_type() {
        DataType::Utf8 => Value::from(array.as_string::<i32>().value(i)),
        DataType::LargeUtf8 => Value::from(array.as_string::<i64>().value(i)),
        DataType::Utf8View => Value::from(array.as_string_view().value(i)),
        DataType::Boolean => Value::from(array.as_boolean().value(i)),
        DataType::Int8 => Value::from(array.as_primitive::<Int8Type>().value(i)),
        DataType::Int16 => Value::from(array.as_primitive::<Int16Type>().value(i)),
        DataType::Int32 => Value::from(array.as_primitive::<Int32Type>().value(i)),
        DataType::Int64 => Value::from(array.as_primitive::<Int64Type>().value(i)),
        DataType::UInt8 => Value::from(array.as_primitive::<UInt8Type>().value(i)),
        DataType::UInt16 => Value::from(array.as_primitive::<UInt16Type>().value(i)),
        DataType::UInt32 => Value::from(array.as_primitive::<UInt32Type>().value(i)),
        DataType::UInt64 => Value::from(array.as_primitive::<UInt64Type>().value(i)),
        DataType::Float32 => Value::from(array.as_primitive::<Float32Type>().value(i)),
        DataType::Float64 => Value::from(array.as_primitive::<Float64Type>().value(i)),
        DataType::List(_) => list(array.as_list::<i32>().value(i).as_ref()),
        DataType::LargeList(_) => list(array.as_list::<i64>().value(i).as_ref()),
        DataType::FixedSizeList(..) => list(array.as_fixed_size_list().value(i).as_ref()),
        DataType::ListView(_) => list(array.as_list_view::<i32>().value(i).as_ref()),
        DataType::Struct(fields) => {
            let columns = fields.iter().zip(array.as_struct().columns());
            let fields = columns.map(|(field, column)| (field.name().clone(), value(column.as_ref(), i)));
            Value::Object(fields.filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>())
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            match value(dictionary.keys(), i).as_u64() {
                Some(key) if (key as usize) < dictionary.values().len() => {
                    value(dictionary.values().as_ref(), key as usize)
                }
                _ => Value::Null,
            }
        }
        _ => Value::Null,
    }
}
