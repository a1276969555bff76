"""What these tests share: the real program in a folder of its own, with a small text. Run by ctest as
`properties: ...`, or by hand: LTRAIN_BINARY=build/ltrain pytest-3 tests/properties"""
import array
import json
import os
import pathlib
import struct
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = pathlib.Path(os.environ.get("LTRAIN_BINARY", ROOT / "build" / "ltrain")).resolve()
sys.dont_write_bytecode = True

TINY = """name: tiny
output_dir: run
model: {architecture: llama, vocab_size: 257, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 2,
        num_attention_heads: 2, max_position_embeddings: 64}
parallel: {data: 1}
data: {train: [{path: text-train}], eval: [{path: text-val}], seq_length: 32}
train: {micro_batch_size: 2, global_batch_size: 4, train_steps: 3, eval_interval: 3, eval_steps: 1}
optimizer: {lr: 1.0e-3}
launch: {threads_per_rank: 1}
"""


class Program:
    """`ltrain` in a folder."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "tiny.yaml").write_text(TINY)
        lines = (f"line {i} of a text that repeats itself, {i * i} times.\n\n" for i in range(1500))
        (folder / "text.txt").write_text("".join(lines))
        self.ok("data", "build", "--input", "text.txt", "--output", "text", "--split", "90,10", "--tokenizer", "byte")
        (folder / "lines.jsonl").write_text("".join(f'{{"text": "document {i} of {i * i}"}}\n' for i in range(400)))
        self.ok("data", "build", "--input", "lines.jsonl", "--output", "lines", "--tokenizer", "byte")
        # Documents that repeat, and evaluation data with one of them whole and others by their first 14 words.
        texts = [f"number {i} is read {i * i} times by all who count to {i} and then to {i * i} once more"
                 for i in range(100)]
        (folder / "repeated.jsonl").write_text("".join(json.dumps({"text": texts[i % 100]}) + "\n" for i in range(300)))
        held = [texts[0]] + [" ".join(text.split()[:14]) for text in texts[1:30]]
        (folder / "held.jsonl").write_text("".join(json.dumps({"question": text}) + "\n" for text in held))
        for suffix in ("bin", "idx"):  # files of another program, without the sidecar
            (folder / f"bare.{suffix}").write_bytes((folder / f"lines.{suffix}").read_bytes())
        (folder / "other").mkdir()

    def run(self, *arguments):
        """The finished process; its output is text."""
        environment = {**os.environ, "LTRAIN_PROFILE": "none", "OMP_NUM_THREADS": "1"}
        return subprocess.run([BINARY, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True,
                              check=False)

    def ok(self, *arguments):
        """Standard output of a run that must succeed."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"ltrain {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *arguments):
        return json.loads(self.ok(*arguments, "--json"))

    def metrics(self, run="run"):
        """Of each step the object of metrics.jsonl, and of each evaluation."""
        rows = [json.loads(line) for line in (self.folder / run / "metrics.jsonl").read_text().splitlines()]
        return [r for r in rows if "lm_loss" in r], [r for r in rows if "eval_loss" in r]

    def tensors(self, checkpoint):
        """{name: values} of a checkpoint's fp32 tensors, written by one rank."""
        out = {}
        for file in sorted((self.folder / checkpoint).glob("*.safetensors")):
            raw = file.read_bytes()
            (size,) = struct.unpack("<Q", raw[:8])
            for name, entry in json.loads(raw[8:8 + size]).items():
                if name == "__metadata__" or entry["dtype"] != "F32":
                    continue
                begin, end = entry["data_offsets"]
                out[name] = array.array("f", raw[8 + size + begin:8 + size + end])
        return out


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return Program(tmp_path_factory.mktemp("properties"))
