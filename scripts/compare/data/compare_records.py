#!/usr/bin/env python3
"""Compares the readers of Parquet and Arrow files with pyarrow, value by value.

Usage: scripts/compare.sh records [--random N] [--seed S] [--only parquet] [--folder FOLDER] [--speed]
--random N (300): writes N files of random types, values, encodings, codecs and pages with pyarrow, and reads them with both.
--folder FOLDER: reads every Parquet and Arrow file below FOLDER with both, and says how each ended.
--speed: CPU time on one thread for a column of text of 430 MB, in turns. Exits with 1 at a difference.
"""
# build: print_records
# packages: pyarrow numpy zstandard pysimdjson
import argparse
import json
import os
import pathlib
import random
import string
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

PRINT = os.environ.get("PRINT_RECORDS", "build/print_records")
CODECS = ["NONE", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD"]


class Different(Exception):
    pass


# Values in the form of ltrain's output: strings are bytes, read as Latin-1, and an object is a tuple of pairs.
def ours(path, *options):
    """Lines as values, or the text of the error."""
    done = subprocess.run([PRINT, str(path), *options], capture_output=True, timeout=300)
    if done.returncode == 65:
        return done.stderr.decode(errors="replace").strip()
    if done.returncode != 0:
        raise Different(f"{path}: print_records ended with {done.returncode}: {done.stderr[-2000:]!r}")
    return [json.loads(line, object_pairs_hook=tuple) for line in done.stdout.decode("latin-1").split("\n")[:-1]]


def latin(value):
    return (value.encode() if isinstance(value, str) else value).decode("latin-1")


def text_key(t):
    return pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_binary(t) or pa.types.is_large_binary(t)


def values(a):
    """Values of an array as ltrain shows them."""
    t = a.type
    if isinstance(t, pa.BaseExtensionType):
        return values(a.storage)
    if pa.types.is_dictionary(t):
        return values(a.dictionary_decode())
    if pa.types.is_temporal(t):
        return a.view(pa.int32() if t.bit_width == 32 else pa.int64()).to_pylist()
    if pa.types.is_decimal(t):
        return [None if v is None else format(v, "f") for v in a.to_pylist()]
    if pa.types.is_floating(t):
        return [None if v is None else float(v) for v in a.to_pylist()]
    if pa.types.is_string(t):  # files have invalid UTF-8, which bytes keep
        return values(a.view(pa.binary()))
    if pa.types.is_large_string(t):
        return values(a.view(pa.large_binary()))
    if text_key(t) or pa.types.is_fixed_size_binary(t) or pa.types.is_string_view(t) or pa.types.is_binary_view(t):
        return [None if v is None else latin(v) for v in a.to_pylist()]
    valid = a.is_valid().to_pylist()
    if pa.types.is_struct(t):
        columns = [values(a.field(i)) for i in range(t.num_fields)]
        names = [latin(t.field(i).name) for i in range(t.num_fields)]
        return [tuple(zip(names, row)) if ok else None for ok, row in zip(valid, zip(*columns) if columns else [()] * len(a))]
    if pa.types.is_map(t):
        begins, keys, items = a.offsets.to_pylist(), values(a.keys), values(a.items)
        names = (latin(t.key_field.name), latin(t.item_field.name))
        pairs = [(k, v) if text_key(t.key_type) else ((names[0], k), (names[1], v)) for k, v in zip(keys, items)]
        box = tuple if text_key(t.key_type) else list
        return [box(pairs[begins[i] - begins[0] : begins[i + 1] - begins[0]]) if ok else None for i, ok in enumerate(valid)]
    if pa.types.is_fixed_size_list(t):
        flat = values(a.values)
        return [flat[(a.offset + i) * t.list_size :][: t.list_size] if ok else None for i, ok in enumerate(valid)]
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        begins, flat = a.offsets.to_pylist(), values(a.values)
        return [flat[begins[i] : begins[i + 1]] if ok else None for i, ok in enumerate(valid)]
    return a.to_pylist()


def column_values(column):
    return [v for chunk in column.chunks for v in values(chunk)]


def rows_of(table):
    columns = [column_values(c) for c in table.columns]
    names = [latin(n) for n in table.column_names]
    return [tuple(zip(names, row)) for row in zip(*columns)]


def text_of(value):
    return repr(value)  # tells -0.0 from 0.0, 1 from 1.0; NaN is like itself


def same(got, want, what):
    if isinstance(got, str):
        raise Different(f"{what}: refused: {got}")
    if len(got) != len(want):
        raise Different(f"{what}: {len(got)} records, expected {len(want)}")
    for i, (g, w) in enumerate(zip(got, want)):
        if text_of(g) != text_of(w):
            raise Different(f"{what}: record {i}: got {text_of(g)[:300]}, expected {text_of(w)[:300]}")


def is_text(t):
    return text_key(t) or pa.types.is_fixed_size_binary(t) or pa.types.is_string_view(t)


def is_tokens(t):
    lists = pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t)
    return lists and pa.types.is_integer(t.value_type)


def check_alone(path, table):
    """The columns that are text or tokens, each alone."""
    for name in table.column_names:
        if table.column_names.count(name) > 1:
            continue
        t = table.schema.field(name).type
        if pa.types.is_dictionary(t):
            t = t.value_type
        if not (is_text(t) or is_tokens(t)) or "," in name or not name:
            continue
        want = column_values(table[name])
        if is_tokens(t) and any(v is not None and any(x is None or not -(2**31) <= x < 2**31 for x in v) for v in want):
            if not isinstance(ours(path, "--fields", name), str):
                raise Different(f"{path}: {name}: read, expected an error for a token that is null or too large")
            continue
        same(ours(path, "--fields", name), want, f"{path}: {name}")


# Random tables.
def random_field(r, name, t):
    return pa.field(name, t, pa.types.is_null(t) or r.random() < 0.8)


def random_type(r, depth):
    nested = ["list", "list", "struct", "map", "large_list", "fixed_size_list"] if depth > 0 else []
    kind = r.choice(["string"] * 4 + ["int64", "int32", "int8", "uint16", "uint32", "uint64", "int16", "float32", "float64",
                     "bool", "binary", "large_string", "fixed", "decimal", "date", "timestamp", "time", "float16", "null",
                     "dictionary"] + nested)
    if kind == "struct":
        return pa.struct([random_field(r, f"f{i}", random_type(r, depth - 1)) for i in range(r.randint(1, 3))])
    if kind == "map":
        key = pa.string() if r.random() < 0.7 else pa.int32()
        return pa.map_(key, random_type(r, depth - 1))
    if kind.endswith("list"):
        of = random_field(r, "item", random_type(r, depth - 1))
        if r.random() < 0.4:
            of = pa.field("item", r.choice([pa.int32(), pa.int64(), pa.uint16()]), r.random() < 0.5)
        if kind == "fixed_size_list":
            return pa.list_(of, r.randint(1, 3))
        return pa.list_(of) if kind == "list" else pa.large_list(of)
    simple = {"fixed": pa.binary(r.randint(1, 20)), "decimal": pa.decimal128(r.randint(10, 38), r.randint(0, 9)),
              "date": pa.date32(), "timestamp": pa.timestamp(r.choice(["ms", "us", "ns"])), "time": pa.time64("us"),
              "null": pa.null(), "float32": pa.float32(), "float64": pa.float64(), "float16": pa.float16(), "bool": pa.bool_(),
              "dictionary": pa.dictionary(pa.int32(), pa.string())}
    return simple.get(kind) or getattr(pa, kind)()


def random_text(r):
    shape = r.random()
    if shape < 0.2:
        return ""
    if shape < 0.5:
        return r.choice(["", "a", "user", "assistant", "héllo", "日本", "prefix/one", "prefix/two", '"\\\n\t\x01'])
    alphabet = string.ascii_letters + " \n\"\\é日😀\x00\x1f\x7f"
    return "".join(r.choices(alphabet, k=r.choice([3, 30, 300])))


def random_array(r, t, n, nullable=True):
    """An array of n values; about a quarter are null, sometimes all or none."""
    share = r.choice([0, 0.25, 0.25, 0.9, 1]) if nullable else 0
    valid = [r.random() >= share for _ in range(n)]
    if pa.types.is_null(t):
        return pa.nulls(n)
    if pa.types.is_struct(t):
        fields = [t.field(i) for i in range(t.num_fields)]
        return pa.StructArray.from_arrays([random_array(r, f.type, n, f.nullable) for f in fields], fields=fields,
                                          mask=pa.array([not v for v in valid], pa.bool_()))
    if pa.types.is_map(t) or pa.types.is_list(t) or pa.types.is_large_list(t):
        counts = [r.choice([0, 1, 2, 2, 5, 40]) if v else 0 for v in valid]
        begins = np.concatenate([[0], np.cumsum(counts)])
        whole = pa.array(begins, pa.int64() if pa.types.is_large_list(t) else pa.int32())
        offsets = pa.array([b if i == n or valid[i] else None for i, b in enumerate(begins.tolist())], whole.type)
        if pa.types.is_map(t):
            keys, items = random_array(r, t.key_type, int(begins[-1]), False), random_array(r, t.item_type, int(begins[-1]))
            return pa.MapArray.from_arrays(offsets, keys, items)
        inner = random_array(r, t.value_type, int(begins[-1]), t.value_field.nullable)
        return (pa.LargeListArray if pa.types.is_large_list(t) else pa.ListArray).from_arrays(offsets, inner, type=t)
    if pa.types.is_fixed_size_list(t):
        inner = random_array(r, t.value_type, n * t.list_size, t.value_field.nullable)
        return pa.FixedSizeListArray.from_arrays(inner, type=t, mask=pa.array([not v for v in valid], pa.bool_()))
    if pa.types.is_dictionary(t):
        words = pa.array([random_text(r) for _ in range(r.randint(1, 300))])
        return pa.DictionaryArray.from_arrays(pa.array([r.randrange(len(words)) if v else None for v in valid], pa.int32()), words)
    return pa.array([random_scalar(r, t) if v else None for v in valid], t)


def random_scalar(r, t):
    if pa.types.is_string(t) or pa.types.is_large_string(t):
        return random_text(r)
    if pa.types.is_fixed_size_binary(t):
        return r.randbytes(t.byte_width)
    if pa.types.is_binary(t):
        return r.randbytes(r.choice([0, 1, 4, 50]))
    if pa.types.is_boolean(t):
        return r.random() < 0.5
    if pa.types.is_floating(t):
        value = r.choice([0.0, -0.0, 1.0, 0.1, float("nan"), float("inf"), -float("inf"), 1e-300, 1e300, r.gauss(0, 1e3)])
        return np.float16(value) if t.bit_width == 16 else np.float32(value) if t.bit_width == 32 else value
    if pa.types.is_decimal(t):
        import decimal
        return decimal.Decimal(r.randint(-(10 ** r.randint(1, t.precision)) + 1, 10 ** r.randint(1, t.precision) - 1)).scaleb(
            -t.scale, decimal.Context(prec=60))
    if pa.types.is_date(t):
        return pa.scalar(r.randint(-(10**5), 10**5), pa.int32()).cast(t)
    if pa.types.is_timestamp(t):
        return pa.scalar(r.randint(-(2**62), 2**62), pa.int64()).cast(t)
    if pa.types.is_time(t):
        return pa.scalar(r.randrange(86400 * 10**6), pa.int64()).cast(t)
    low, high = (0, 2**t.bit_width - 1) if pa.types.is_unsigned_integer(t) else (-(2 ** (t.bit_width - 1)), 2 ** (t.bit_width - 1) - 1)
    return r.choice([0, 1, min(100, high), low, high, r.randint(low, high), r.randint(low, min(high, 50000))])


def random_table(r):
    n = r.choice([0, 1, 7, 100, 1000, 3000])
    fields = [random_field(r, r.choice(["text", "a b", "ä", "x"]) + str(i), random_type(r, r.randint(0, 3)))
              for i in range(r.randint(1, 4))]
    arrays = [random_array(r, f.type, n, f.nullable) for f in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def leaf_types(t, path):
    if pa.types.is_dictionary(t):
        t = t.value_type
    if pa.types.is_struct(t):
        for i in range(t.num_fields):
            yield from leaf_types(t.field(i).type, f"{path}.{t.field(i).name}")
    elif pa.types.is_map(t):
        yield from leaf_types(t.key_type, f"{path}.key_value.key")
        yield from leaf_types(t.item_type, f"{path}.key_value.value")
    elif pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t):
        yield from leaf_types(t.value_type, f"{path}.list.element")
    else:
        yield path, t


def random_encoding(r, t):
    choices = ["PLAIN"]
    if pa.types.is_boolean(t):
        choices.append("RLE")
    elif pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_binary(t):
        choices += ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
    elif pa.types.is_fixed_size_binary(t) or pa.types.is_float16(t):
        choices += ["DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"]
    elif pa.types.is_floating(t):
        choices += ["BYTE_STREAM_SPLIT"]
    elif pa.types.is_integer(t) or pa.types.is_temporal(t):
        choices += ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
    return r.choice(choices)


def write_parquet(r, table, path):
    options = {"compression": r.choice(CODECS), "data_page_version": r.choice(["1.0", "2.0"]),
               "data_page_size": r.choice([64, 1000, 10000, 1 << 20]), "write_batch_size": r.choice([7, 64, 1024]),
               "row_group_size": r.choice([1, 50, 1000, 10**6]) if len(table) < 500 else r.choice([300, 10**6]),
               "write_page_checksum": r.random() < 0.5, "store_schema": r.random() < 0.7,
               "dictionary_pagesize_limit": r.choice([100, 1 << 20]), "write_statistics": r.random() < 0.5}
    leaves = [leaf for f in table.schema for leaf in leaf_types(f.type, f.name)]
    if r.random() < 0.6:
        options |= {"use_dictionary": False, "column_encoding": {path: random_encoding(r, t) for path, t in leaves}}
    elif r.random() < 0.3:
        options |= {"use_compliant_nested_type": False}
    pq.write_table(table, path, **options)
    return options


def write_arrow(r, table, path):
    """The stream or the file format, with views of texts or without; a dictionary grows or is replaced where the format
    allows it."""
    if r.random() < 0.5:
        table = table.cast(pa.schema([f.with_type(pa.string_view()) if pa.types.is_string(f.type) else f for f in table.schema]))
    file_format = r.random() < 0.4
    codec = r.choice([None, None, "lz4", "zstd"])
    v4 = codec is None and r.random() < 0.3  # pyarrow does not decompress its own V4
    options = pa.ipc.IpcWriteOptions(
        compression=codec, metadata_version=pa.ipc.MetadataVersion.V4 if v4 else pa.ipc.MetadataVersion.V5,
        unify_dictionaries=file_format, emit_dictionary_deltas=r.random() < 0.5)
    new = pa.ipc.new_file if file_format else pa.ipc.new_stream
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=r.choice([1, 100, 1000]) if len(table) < 500 else r.choice([100, 5000]))
    return {"file": file_format}


def read_arrow(path):
    with open(path, "rb") as f:
        file_format = f.read(6) == b"ARROW1"
    with pa.OSFile(str(path)) as source:
        return (pa.ipc.open_file if file_format else pa.ipc.open_stream)(source).read_all()


def random_files(count, seed, only):
    for i in range(count):
        r = random.Random(seed * 1_000_003 + i)
        table = random_table(r)
        with tempfile.TemporaryDirectory() as folder:
            for write, read, name in ((write_parquet, pq.read_table, "a.parquet"), (write_arrow, read_arrow, "a.arrow")):
                path = pathlib.Path(folder) / name
                if only and not name.endswith(only):
                    continue
                try:
                    options = write(r, table, path)
                    back = read(path)
                except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OSError) as e:
                    print(f"random {i}: pyarrow refuses {name}: {str(e)[:150]}")
                    continue
                try:
                    same(ours(path, "--json"), rows_of(back), f"random {i}: {name}")
                    check_alone(path, back)
                except Different as e:
                    raise Different(f"{e}\n{table.schema}\n{options}") from e
    print(f"random: {count} tables as {only or 'Parquet and Arrow'}: equal")


def folder_files(folder):
    """One line per file: equal, different, or refused by one or both."""
    counts = {}
    bad = False
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if not path.is_file() or path.suffix not in (".parquet", ".encrypted", ".arrow", ".arrow_file", ".stream", "") and (
                "clusterfuzz" not in path.name and "fuzz" not in path.name):
            continue
        with open(path, "rb") as f:
            head = f.read(6)
        try:
            table = pq.ParquetFile(path).read() if head[:3] == b"PAR" else read_arrow(path)
            try:
                table.validate(full=True)
            except pa.ArrowInvalid as e:  # rules that are not about reading
                if "whole number of days" not in str(e) and "fit in precision" not in str(e):
                    raise
            want, why = rows_of(table), ""
        except Exception as e:  # pylint: disable=broad-except
            want, why = None, f"{type(e).__name__}: {e}"
        try:
            got = ours(path, "--json")
            if isinstance(got, str):
                outcome = "both refuse" if want is None else "ltrain refuses"
                why = f"{got.replace(str(path), '')[:260]}" + (f" | pyarrow: {why[:120]}" if why else "")
            elif want is None:
                outcome, why = "pyarrow refuses", why[:200]
            else:
                same(got, want, "")
                check_alone(path, table)
                outcome = "equal"
        except Different as e:
            outcome, why, bad = "different", str(e)[:600], True
        counts[outcome] = counts.get(outcome, 0) + 1
        print(f"{outcome:16} {path.relative_to(folder)} {why}".rstrip().replace("\n", " "))
    print(", ".join(f"{k}: {v}" for k, v in sorted(counts.items())))
    return not bad


def print_rates(title, ways, size):
    """MB/s of each way, in turns: the best of five CPU times. The way `ltrain` gives its own seconds."""
    best = {}
    for _ in range(5):
        for name, way in ways.items():
            begin = time.process_time()
            result = way()
            seconds = result if name == "ltrain" else time.process_time() - begin
            del result
            best[name] = min(best.get(name, 1e9), seconds)
    print(f"{title:10}" + "".join(f"  {name} {size / s:6.0f} MB/s" for name, s in best.items()), flush=True)


def speed_of_lines(folder, texts, size):
    """JSON lines, beside what zstd and simdjson take alone for the same bytes, and Python's way to the texts."""
    import simdjson
    import zstandard
    lines = [json.dumps({"text": t, "id": i}).encode() for i, t in enumerate(texts)] * 12
    plain = b"\n".join(lines) + b"\n"
    packed = zstandard.ZstdCompressor(level=3).compress(plain)

    def decompress():
        with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            while stream.read(1 << 20):
                pass

    def parse():
        parser = simdjson.Parser()
        for line in lines:
            parser.parse(line)["text"]

    for name, content in (("JSONL", plain), ("JSONL.zst", packed)):
        path = os.path.join(folder, "a.jsonl")
        with open(path, "wb") as f:
            f.write(content)
        ways = {"ltrain": lambda: json.loads(subprocess.check_output([PRINT, path, "--count"]))["seconds"], "simdjson": parse}
        if content is packed:
            ways["zstd"] = decompress
        print_rates(name, ways, size)


def speed():
    """Texts of about 2 kB, as datasets of web pages have them, with and without compression."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    r = random.Random(1)
    words = ["".join(r.choices(string.ascii_lowercase, k=r.randint(2, 9))) for _ in range(5000)]
    texts = [" ".join(r.choices(words, k=r.randint(50, 600))) for _ in range(20000)]
    table = pa.table({"text": texts * 12, "id": range(len(texts) * 12)})
    size = sum(map(len, texts)) * 12 / 1e6
    with tempfile.TemporaryDirectory() as folder:
        speed_of_lines(folder, texts, size)
        for codec in ("NONE", "SNAPPY", "ZSTD", "arrow"):
            path = os.path.join(folder, "a")
            if codec == "arrow":
                with pa.ipc.new_stream(path, table.schema) as writer:
                    writer.write_table(table, max_chunksize=1000)
            else:
                pq.write_table(table, path, compression=codec, use_dictionary=False, row_group_size=50000)

            def read():
                if codec != "arrow":
                    return pq.read_table(path, columns=["text"], use_threads=False, memory_map=False)["text"]
                return read_arrow(path)["text"]

            def read_pages():
                if codec != "arrow":
                    return sum(b.num_rows for b in pq.ParquetFile(path).iter_batches(1000, columns=["text"], use_threads=False))
                with pa.OSFile(path) as source:
                    return sum(b.num_rows for b in pa.ipc.open_stream(source))

            ways = {"ltrain": lambda: json.loads(subprocess.check_output([PRINT, path, "--fields", "text", "--count"]))["seconds"],
                    "pyarrow": read, "pyarrow batches": read_pages, "pyarrow to_pylist": lambda: read().to_pylist()}
            print_rates(codec, ways, size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["parquet", "arrow"])
    parser.add_argument("--folder")
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    try:
        if args.folder and not folder_files(args.folder):
            sys.exit(1)
        if args.speed:
            speed()
        if args.random or not (args.folder or args.speed):
            random_files(args.random or 300, args.seed, args.only)
    except Different as e:
        sys.exit(str(e))


if __name__ == "__main__":
    main()
