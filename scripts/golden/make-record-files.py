#!/usr/bin/env python3
"""Writes tests/golden/records: the same six records by the libraries that users have (mosaicml-streaming, tfrecord,
webdataset), and what they hold. Usage: python3 scripts/golden/make-record-files.py, with these three from PyPI."""
import json
import pathlib
import shutil
import tempfile

import numpy as np
import webdataset
from streaming import MDSWriter
from tfrecord.writer import TFRecordWriter

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/records"
TEXTS = ["first", "", "zwölf Wörter", "line\nbreak, \"quotes\"", "日本語", "last " * 40]
IDS = [[1, 2, 3], [250], list(range(40)), [0], [7, 7], [255, 254]]


def write_mds(name, compression):
    with tempfile.TemporaryDirectory() as folder:
        columns = {"text": "str", "n": "int", "ids": "ndarray:int32", "any": "ndarray", "meta": "json"}
        with MDSWriter(out=folder + "/out", columns=columns, compression=compression) as w:
            for text, ids in zip(TEXTS, IDS):
                w.write({"text": text, "n": len(text), "ids": np.array(ids, dtype=np.int32),
                         "any": np.array(ids, dtype=np.uint16), "meta": {"a": [1, None]}})
        shutil.copy(f"{folder}/out/shard.00000.mds" + (".zstd" if compression else ""), OUT / name)


def main():
    OUT.mkdir(exist_ok=True)
    write_mds("shard.mds", None)
    write_mds("shard.mds.zstd", "zstd")
    writer = TFRecordWriter(str(OUT / "examples.tfrecord"))
    for text, ids in zip(TEXTS, IDS):
        writer.write({"text": (text.encode(), "byte"), "ids": (ids, "int"), "weights": ([0.5, 1.5], "float")})
    writer.close()
    with webdataset.TarWriter(str(OUT / "samples.tar.gz"), mtime=0) as sink:
        for i, text in enumerate(TEXTS):
            sink.write({"__key__": f"{'long/' * 30 if i == 2 else ''}sample{i}", "txt": text, "json": {"body": text}})
    (OUT / "records.json").write_text(json.dumps({"texts": TEXTS, "ids": IDS}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
