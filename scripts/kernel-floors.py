#!/usr/bin/env python3
"""What the memory-bound ops of a training step must move, and how long that takes at the rate of an H200's memory.

    scripts/kernel-floors.py LTRAIN            compare with the page; any difference fails
    scripts/kernel-floors.py LTRAIN --write    write the page

LTRAIN is a built program. The page is docs/measurements/kernel-floors.md. Its bytes are those that `ltrain plan` prices
ops by; tests/cuda/traffic_test.cpp counts that kernels move them.
"""
import argparse
import difflib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/measurements/kernel-floors.md"
PROFILE = ROOT / "runtime/plan/devices/h200.yaml"

RECIPE = """
name: floors
device: cuda
model: {{{model}}}
precision: {precision}
parallel: {{{parallel}}}
data:
  train: [{{path: none}}]
  tokenizer: {{kind: byte}}
  seq_length: {seq}
train: {{micro_batch_size: {micro}, global_batch_size: {batch}, train_steps: 10}}
"""
MODELS = {
    "Llama-3.2-1B": dict(
        model="architecture: llama, vocab_size: 128256, hidden_size: 2048, intermediate_size: 8192, num_hidden_layers: 16, "
        "num_attention_heads: 32, num_key_value_heads: 8, max_position_embeddings: 4096, tie_word_embeddings: true",
        parallel="data: 1", seq=4096, micro=4, batch=8,
        text="one H200, 2 micro-batches of 4 x 4096 tokens"),
    "GPT-2 1.5B": dict(
        model="architecture: gpt2, vocab_size: 50304, hidden_size: 1600, num_hidden_layers: 48, num_attention_heads: 25, "
        "max_position_embeddings: 1024",
        parallel="data: 1", seq=1024, micro=16, batch=32,
        text="one H200, vocabulary padded to 50304, 2 micro-batches of 16 x 1024 tokens"),
    "Llama-3.1-8B": dict(
        model="architecture: llama, vocab_size: 128256, hidden_size: 4096, intermediate_size: 14336, num_hidden_layers: 32, "
        "num_attention_heads: 32, num_key_value_heads: 8, max_position_embeddings: 8192",
        parallel="data: 8, zero_stage: 1", seq=8192, micro=1, batch=16,
        text="rank 0 of eight H200 with ZeRO-1, 2 micro-batches of 1 x 8192 tokens"),
}
MODELS["Llama-3.1-8B in FP8"] = MODELS["Llama-3.1-8B"] | dict(
    precision="fp8", text="as above, with delayed scaling: weights are rounded once a step, norms and SwiGLU write codes")
BOUND = ("elementwise", "cross_entropy", "optimizer")  # classes of ops that memory bounds


def memory_rate():
    text = PROFILE.read_text()
    value = lambda key: float(re.search(rf"^  {key}: {{value: ([^,]+),", text, re.M)[1])
    return value("bytes_per_second"), value("sustained")


def planned_ops(ltrain, model):
    """[(name, class, bytes, seconds as planned)] of a step."""
    with tempfile.TemporaryDirectory() as folder:
        recipe, trace = pathlib.Path(folder) / "recipe.yaml", pathlib.Path(folder) / "trace.json"
        recipe.write_text(RECIPE.format(**{"precision": "bf16"} | model))
        command = [ltrain, "plan", str(recipe), "--profile", "h200", "--trace", str(trace)]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"kernel-floors: {' '.join(command)} failed: {run.stdout}{run.stderr}")
        events = json.loads(trace.read_text())["traceEvents"]
    return [(e["name"], e["cat"], e["args"].get("bytes", 0), e["dur"] / 1e6) for e in events if e.get("ph") == "X"]


def table(ltrain, name, model, rate):
    ops = planned_ops(ltrain, model)
    by_name = {}
    for op, kind, size, _ in ops:
        if kind in BOUND:
            calls, total = by_name.get(op, (0, 0))
            by_name[op] = calls + 1, total + size
    yield f"## {name}\n"
    yield f"{model['text'][0].upper()}{model['text'][1:]}.\n"
    yield "| op | calls a step | MB a call | GB a step | floor, ms a step |"
    yield "|---|---|---|---|---|"
    row = lambda op, calls, size: f"| {op} | {calls} | {size / calls / 1e6:.1f} | {size / 1e9:.2f} | {size / rate * 1e3:.2f} |"
    for op, (calls, size) in sorted(by_name.items(), key=lambda kv: (-kv[1][1], kv[0])):
        yield row(op, calls, size)
    yield row("all", sum(c for c, _ in by_name.values()), sum(b for _, b in by_name.values()))
    products = sum(s for _, kind, _, s in ops if kind in ("matmul", "attention"))
    yield f"\nBeside them, matmul and attention as planned: {products * 1e3:.0f} ms.\n"


def page(ltrain):
    peak, share = memory_rate()
    lines = [
        "# Floors of the memory-bound ops of a training step\n",
        "**Floor, not measured: no kernel of this table has run on a GPU.** Lay the first profile beside it: an op that takes "
        "more than half as long again is worth a look.\n",
        f"Bytes are those that an op must move, each operand once, by which `ltrain plan --profile h200` prices it; the time is "
        f"that of moving them at {share * peak / 1e12:.2f} TB/s, {share * 100:.0f} % of the {peak / 1e12:.1f} TB/s of an H200's datasheet, what a copy "
        "reached. A call has some microseconds more. That the kernels move these bytes, and what they load again from the "
        "caches, is counted access by access (`tests/cuda/traffic_test.cpp`). Cross-entropy reads its logits twice: a row of "
        "128256 in fp32 is larger than a block's memory. Written by `scripts/kernel-floors.py build/ltrain --write`.\n",
    ]
    for name, model in MODELS.items():
        lines += table(ltrain, name, model, peak * share)
    return "\n".join(lines).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ltrain")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    now = page(args.ltrain)
    if args.write:
        PAGE.write_text(now)
        return print(f"kernel-floors: wrote {PAGE.relative_to(ROOT)}")
    before = PAGE.read_text()
    if now != before:
        sys.stderr.writelines(difflib.unified_diff(before.splitlines(True), now.splitlines(True), "the page", "this build"))
        sys.exit("kernel-floors: other than the page; if that is meant: scripts/kernel-floors.py LTRAIN --write")
    print("kernel-floors: as the page says")


if __name__ == "__main__":
    main()
