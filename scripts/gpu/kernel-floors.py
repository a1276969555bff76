#!/usr/bin/env python3
"""What the ops of a training step must move or compute, how long that takes an H200 at least, and what the plan expects.

    scripts/gpu/kernel-floors.py LTRAIN            compare with the page; any difference fails
    scripts/gpu/kernel-floors.py LTRAIN --write    write the page

LTRAIN is a built program. The page is docs/measurements/kernel-floors.md. Its bytes are those that `ltrain plan` prices
ops by; tests/cuda/traffic_test.cpp and tests/cuda_traffic count that kernels move them.
"""
import argparse
import difflib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/measurements/kernel-floors.md"
PROFILE = ROOT / "runtime/machines/devices/h200.yaml"

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
PRODUCTS = ("matmul", "attention")


def figures():
    """Of the profile: bytes a second of the memory, the share of them that a copy reached, operations a second by type."""
    text = PROFILE.read_text()
    value = lambda key: float(re.search(rf"^ +{key}: {{value: ([^,]+),", text, re.M)[1])
    return value("bytes_per_second"), value("sustained"), {"bf16": value("bf16"), "fp8": value("fp8")}


def planned_ops(ltrain, model):
    """[(name, class, bytes, operations, seconds as planned)] of a step."""
    with tempfile.TemporaryDirectory() as folder:
        recipe, trace = pathlib.Path(folder) / "recipe.yaml", pathlib.Path(folder) / "trace.json"
        recipe.write_text(RECIPE.format(**{"precision": "bf16"} | model))
        command = [ltrain, "plan", str(recipe), "--profile", "h200", "--trace", str(trace)]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"kernel-floors: {' '.join(command)} failed: {run.stdout}{run.stderr}")
        events = json.loads(trace.read_text())["traceEvents"]
    return [(e["name"], e["cat"], e["args"].get("bytes", 0), e["args"].get("flops", 0), e["dur"] / 1e6) for e in events
            if e.get("ph") == "X"]


def table(ops, what, a_call, a_step):
    """Of (name, amount, floor, seconds as planned): calls of one name together, those with most first, then their sum."""
    sums = {}
    for name, *amounts in ops:
        sums[name] = [x + y for x, y in zip(sums.get(name, [0] * 4), [1, *amounts])]
    yield f"| op | calls a step | {what[0]} a call | {what[1]} a step | floor, ms a step | expected |"
    yield "|---|---|---|---|---|---|"
    most_first = sorted(sums.items(), key=lambda kv: (-kv[1][1], kv[0]))
    for name, (calls, amount, floor, planned) in [*most_first, ("all", [sum(x) for x in zip(*sums.values())])]:
        yield (f"| {name} | {calls} | {amount / calls / a_call:.1f} | {amount / a_step:.2f} | {floor * 1e3:.2f} | "
               f"{planned * 1e3:.2f} |")
    yield ""


def page(ltrain):
    peak, share, peaks = figures()
    lines = [
        "# Floors of the ops of a training step\n",
        "**Floors and plans, not measured.** Lay a profile beside them: an op that takes more than half as long again as expected "
        "is worth a look. [An H200's](h200_2026-11-26.md).\n",
        "Expected is what `ltrain plan --profile h200` prices; its sources are [in the profile](../../runtime/machines/devices/h200.yaml).\n",
        f"- Ops that memory bounds: bytes are those that an op must move, each operand once, by which the plan prices it; the floor "
        f"is moving them at {share * peak / 1e12:.2f} TB/s, {share * 100:.0f} % of the {peak / 1e12:.1f} TB/s of an H200's "
        "datasheet, what a copy reached. Expected is that and some microseconds a call. That the kernels move these bytes, and "
        "what they load again from the caches, is counted access by access (`tests/cuda/traffic_test.cpp`, "
        "`tests/cuda/fp8_traffic_test.cpp`). Cross-entropy reads those logits of a row twice that do not fit a block's memory, "
        "in fp32 all beyond 57344.\n"
        f"- Products and attention: the floor is their operations at the datasheet's peak, {peaks['bf16'] / 1e12:.0f} TFLOP/s in "
        f"bf16 and {peaks['fp8'] / 1e12:.0f} in FP8. Operations of attention are those of visible pairs of positions: five "
        "products in the backward, where the kernels here compute seven; expected is of all seven, at the rates of the best "
        "published ones.\n",
        "Written by `scripts/gpu/kernel-floors.py build/ltrain --write`.\n",
    ]
    for name, model in MODELS.items():
        ops = planned_ops(ltrain, model)
        lines += [f"## {name}\n", f"{model['text'][0].upper()}{model['text'][1:]}.\n"]
        lines += table([(op, size, size / (share * peak), planned) for op, kind, size, _, planned in ops if kind in BOUND],
                       ("MB", "GB"), 1e6, 1e9)
        lines += table([(op, work, work / peaks["fp8" if op.endswith("_fp8") else "bf16"], planned)
                        for op, kind, _, work, planned in ops if kind in PRODUCTS], ("GFLOP", "TFLOP"), 1e9, 1e12)
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
        sys.exit("kernel-floors: other than the page; if that is meant: scripts/gpu/kernel-floors.py LTRAIN --write")
    print("kernel-floors: as the page says")


if __name__ == "__main__":
    main()
