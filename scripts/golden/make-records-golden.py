#!/usr/bin/env python3
"""Writes the Parquet and Arrow files of tests/golden/records/, and expected.json with their records, with pyarrow.

Usage: scripts/golden/make-records-golden.py          Needs `pip install pyarrow numpy`.
expected.json: "files": the table of each file; "tables": the rows that pyarrow reads, as objects.
"""
import decimal
import json
import pathlib
import sys

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "compare" / "data"))
import compare_records  # noqa: E402

FOLDER = ROOT / "tests" / "golden" / "records"
WORDS = ["", "user", "assistant", "Grüße, 世界", 'a "quoted" \\ line\n', "prefix/one", "prefix/two", "x" * 90, "\x00\x1f"]
DELTA = {"text": "DELTA_BYTE_ARRAY", "tokens.list.element": "DELTA_BINARY_PACKED", "score": "BYTE_STREAM_SPLIT",
         "messages.list.element.role": "DELTA_LENGTH_BYTE_ARRAY", "messages.list.element.content": "DELTA_BYTE_ARRAY"}
PLAIN = {name: "PLAIN" for name in DELTA}
SPLIT = PLAIN | {"tokens.list.element": "BYTE_STREAM_SPLIT", "score": "BYTE_STREAM_SPLIT"}


def chat(n):
    """Text, tokens and a conversation in each of n rows; some are null or empty."""
    return pa.table({
        "text": pa.array([None if i % 7 == 3 else WORDS[i % 9] + str(i % 5) for i in range(n)]),
        "tokens": pa.array([None if i % 5 == 2 else [(i * 7919 + j * j) % 50000 for j in range(i % 4 * 3)] for i in range(n)],
                           pa.list_(pa.int32())),
        "score": pa.array([i / 8 for i in range(n)], pa.float64()),
        "messages": pa.array([None if i % 11 == 4 else
                              [{"role": WORDS[1 + j % 2], "content": None if j == 3 else WORDS[(i + j) % 9]} for j in range(i % 5)]
                              for i in range(n)],
                             pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
    })


def types():
    """Every type that JSON shows."""
    d = decimal.Decimal
    return pa.table({
        "bool": pa.array([True, None, False]),
        "int8": pa.array([-128, None, 127], pa.int8()),
        "uint32": pa.array([0, None, 2**32 - 1], pa.uint32()),
        "uint64": pa.array([0, None, 2**64 - 1], pa.uint64()),
        "int64": pa.array([-(2**63), None, 2**63 - 1]),
        "half": pa.array([1.5, None, 65504.0], pa.float16()),
        "float": pa.array([0.1, None, -0.0], pa.float32()),
        "double": pa.array([0.1, None, 1e300]),
        "decimal": pa.array([d("-12.34"), None, d("0.05")], pa.decimal128(20, 2)),
        "date": pa.array([0, None, 20000], pa.date32()),
        "time": pa.array([0, None, 1], pa.time64("us")),
        "timestamp": pa.array([-1, None, 2**60], pa.timestamp("us")),
        "binary": pa.array([b"", None, b"\x00\x7f"]),
        "fixed": pa.array([b"abc", None, b"\x00bc"], pa.binary(3)),
        "large": pa.array(["", None, "large"], pa.large_string()),
        "words": pa.array(["a", None, "a"]).dictionary_encode(),
        "null": pa.nulls(3),
        "map": pa.array([[("k", 1), ("l", None)], None, []], pa.map_(pa.string(), pa.int32())),
        "numbers": pa.array([[(1, "x")], None, []], pa.map_(pa.int32(), pa.string())),
        "nested": pa.array([[[1, None], None, []], None, []], pa.large_list(pa.list_(pa.int64()))),
        "pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
        "struct": pa.array([{"a": {"b": None}}, None, {"a": None}], pa.struct([("a", pa.struct([("b", pa.string())]))])),
    })


def write_all():
    table = chat(40)
    common = {"row_group_size": 25, "data_page_size": 200, "write_batch_size": 16}
    pq.write_table(table, FOLDER / "v1-dictionary-snappy.parquet", compression="SNAPPY", write_page_checksum=True, **common)
    pq.write_table(table, FOLDER / "v2-delta-zstd.parquet", compression="ZSTD", data_page_version="2.0", use_dictionary=False,
                   column_encoding=DELTA, write_page_checksum=True, **common)
    pq.write_table(table, FOLDER / "v1-plain-none.parquet", compression="NONE", use_dictionary=False, column_encoding=PLAIN,
                   use_compliant_nested_type=False, **common)
    pq.write_table(table, FOLDER / "v2-split-gzip.parquet", compression="GZIP", data_page_version="2.0", use_dictionary=False,
                   column_encoding=SPLIT, **common)
    pq.write_table(table, FOLDER / "v1-small-dictionary-lz4.parquet", compression="LZ4", dictionary_pagesize_limit=50, **common)
    pq.write_table(types(), FOLDER / "types-brotli.parquet", compression="BROTLI")
    write_arrow("stream.arrow", table, compression=None)
    write_arrow("stream-zstd.arrow", table, compression="zstd")
    write_arrow("types-stream.arrow", types(), compression=None)
    write_arrow("file-lz4.arrow", table, compression="lz4", new=pa.ipc.new_file)
    words = [pa.array(["a", "b", None, "a"]), pa.array(["b", "c", "d", "a"]), pa.array(["z", None])]
    grown = pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int8()), ["a", "b"]),
                              pa.DictionaryArray.from_arrays(pa.array([1, 2, 3, 0], pa.int8()), ["a", "b", "c", "d"]),
                              pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), ["z"])])
    assert [w for a in words for w in a.to_pylist()] == grown.to_pylist()
    views = table.set_column(0, "text", table["text"].cast(pa.string_view()))
    messages = pa.list_(pa.struct([("role", pa.string_view()), ("content", pa.string_view())]))
    views = views.set_column(3, "messages", pa.array(table["messages"].to_pylist(), messages))
    write_arrow("views-stream.arrow", views, compression=None)
    write_arrow("views-file-zstd.arrow", views, compression="zstd", new=pa.ipc.new_file)
    write_arrow("dictionary-stream.arrow", pa.table({"text": grown}), compression=None, emit_dictionary_deltas=True)


def write_arrow(name, table, new=pa.ipc.new_stream, **options):
    with new(str(FOLDER / name), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=15)


def plain(value):
    """A value of compare_records as JSON has it."""
    if isinstance(value, tuple):
        return {plain(k): plain(v) for k, v in value}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value.encode("latin-1").decode() if isinstance(value, str) else value


def rows(path):
    table = pq.read_table(path) if path.suffix == ".parquet" else compare_records.read_arrow(path)
    return [plain(row) for row in compare_records.rows_of(table)]


def main():
    FOLDER.mkdir(exist_ok=True)
    write_all()
    files = sorted(p for p in FOLDER.iterdir() if p.suffix in (".parquet", ".arrow"))
    tables = []
    names = {}
    for path in files:
        table = rows(path)
        if table not in tables:
            tables.append(table)
        names[path.name] = tables.index(table)
    with open(FOLDER / "expected.json", "w") as f:
        lines = ",\n".join(json.dumps(t, ensure_ascii=False) for t in tables)
        f.write(f'{{"files": {json.dumps(names)},\n"tables": [\n{lines}\n]}}\n')
    print(f"{len(files)} files, {len(tables)} tables, {sum(p.stat().st_size for p in FOLDER.iterdir())} bytes")


if __name__ == "__main__":
    main()
