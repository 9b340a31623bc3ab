"""Makes the tables beside it: `python make.py`, with pyarrow 26."""
import pyarrow as pa
import pyarrow.parquet as pq

# A list of structs in which one has calls and the others not: the table gives all of them the key.
messages = [
    [
        {"role": "user", "content": "é?", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": '{"x": 1}'}]},
        {"role": "tool", "content": "1", "tool_calls": None},
        {"role": "assistant", "content": "one", "tool_calls": None},
    ],
    [{"role": "user", "content": "q", "tool_calls": None}],
    None,
    [{"role": "user", "content": "q2", "tool_calls": None}, {"role": "assistant", "content": "a2", "tool_calls": []}],
]
chat = pa.table({"id": pa.array([1, 2, 3, 4], pa.uint8()), "messages": messages, "when": pa.array([0, 1, 2, 3], pa.timestamp("s"))})
pq.write_table(chat, "chat.parquet", compression="snappy", row_group_size=2)
pq.write_table(chat, "chat_gzip.parquet", compression="gzip", use_dictionary=False)
pq.write_table(chat, "chat_zstd.parquet", compression="zstd")
with pa.OSFile("chat.arrow", "wb") as file, pa.ipc.new_stream(file, chat.schema) as writer:  # as Hugging Face saves
    writer.write_table(chat, max_chunksize=3)
for name, compression in {"chat_file": None, "chat_lz4": "lz4"}.items():
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(f"{name}.arrow", "wb") as file, pa.ipc.new_file(file, chat.schema, options=options) as writer:
        writer.write_table(chat)

texts = pa.array(["a", "b", None, "a"])
for name, column in {
    "text_large": texts.cast(pa.large_string()),
    "text_view": texts.cast(pa.string_view()),
    "text_dictionary": texts.dictionary_encode(),
}.items():
    with pa.OSFile(f"{name}.arrow", "wb") as file:
        table = pa.table({"text": column})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
ids = pa.table({"input_ids": pa.array([[1, 2, 3], [4, 5]], pa.large_list(pa.int64())), "labels": pa.array([[-100, 2, 3], [4, 5]], pa.list_(pa.int32()))})
pq.write_table(ids, "tokens.parquet", compression="lz4")
pq.write_table(ids.slice(0, 0), "empty.parquet")

# Optional columns: null, empty, and (in the second table) not there at all.
alpaca = pa.table({"instruction": ["Add 1 and 2."] * 3, "input": pa.array([None, "", None]), "output": pa.array(["3", "3", None])})
pq.write_table(alpaca, "alpaca.parquet", compression="snappy")
pq.write_table(alpaca.select(["instruction", "output"]), "alpaca_without_input.parquet", compression="snappy")
