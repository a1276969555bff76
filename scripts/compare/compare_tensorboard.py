#!/usr/bin/env python3
"""Images and scalars of a run with experts, read by TensorBoard's own reader and decoded by Pillow. Every pixel of the maps
of load, drops and churn must be the colour of the number in metrics.jsonl."""
# build: ltrain
# packages: tensorboard==2.21.0 pillow==13.0.0
import argparse
import io
import json
import math
import os
import subprocess
import sys
import tempfile

import measure

CELL = 8  # pixels
RECIPE = """
name: images
device: cpu
precision: fp32
model: {architecture: qwen3_moe, vocab_size: 257, hidden_size: 32, num_hidden_layers: 3, num_attention_heads: 2,
        max_position_embeddings: 64, moe: {num_experts: 4, top_k: 2, intermediate_size: 32, dense_layers: [1], capacity_factor: 1.0}}
data: {train: [{path: tokens}], eval: [{path: tokens}], seq_length: 32}
train: {micro_batch_size: 2, global_batch_size: 4, train_steps: 12, eval_interval: 4, eval_steps: 1, routing_probe_interval: 3}
optimizer: {lr: 0.02}
checkpoint: {save_at_end: false}
log: {tensorboard: true}
launch: {threads_per_rank: 1}
"""


def colour(value):
    """Light grey to red by the root of a share, white for none: written from docs/metrics.md."""
    if value is None:
        return (255, 255, 255)
    heat = math.sqrt(value)
    return tuple(int(low + (high - low) * heat) for low, high in ((0xf2, 0xb0), (0xf2, 0x10), (0xf2, 0x10)))


def check(tag, step, image, rows):
    if image.mode != "RGB" or image.size != (CELL * len(rows[0]), CELL * len(rows)):
        sys.exit(f"{tag} at step {step}: {image.mode} of {image.size}, {len(rows)} rows of {len(rows[0])} wanted")
    for y in range(image.height):
        for x in range(image.width):
            want, got = colour(rows[y // CELL][x // CELL]), image.getpixel((x, y))
            if max(abs(a - b) for a, b in zip(want, got)) > 1:  # the last bit of a mean
                sys.exit(f"{tag} at step {step}, pixel {x}, {y}: {got}, not {want}")


def maps(lines):
    """{tag: {step: rows}} from metrics.jsonl."""
    out = {"expert_load": {}, "drop_rate_by_layer": {}, "routing_churn_by_layer": {}}
    load, drops, columns, churn = None, [], [], []
    for line in lines:
        if "expert_tokens" in line:
            tokens = line["expert_tokens"]
            load = [[a + b for a, b in zip(old, new)] for old, new in zip(load, tokens)] if load else tokens
            drops.append(line["drop_rate_by_layer"])
            continue
        step = line["step"]
        if "routing_churn" in line:
            churn.append(line["routing_churn_by_layer"])
            out["routing_churn_by_layer"][step] = [list(row) for row in zip(*churn)]
        if load:
            experts = max(len(layer) for layer in load)
            out["expert_load"][step] = [[n / sum(layer) for n in layer] if layer else [None] * experts for layer in load]
            columns.append([None if of[0] is None else sum(of) / len(of) for of in zip(*drops)])
            out["drop_rate_by_layer"][step] = [list(row) for row in zip(*columns)]
            load, drops = None, []
    return out


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    o = a.parse_args()
    from PIL import Image
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    with tempfile.TemporaryDirectory() as scratch:
        measure.write_tokens(os.path.join(scratch, "tokens"), 20000, 257)
        with open(os.path.join(scratch, "images.yaml"), "w", encoding="utf-8") as f:
            f.write(RECIPE)
        subprocess.run([os.path.abspath(o.binary), "run", "images.yaml", "output_dir=run"], cwd=scratch, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(os.path.join(scratch, "run", "metrics.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        events = EventAccumulator(os.path.join(scratch, "run"), size_guidance={"images": 0, "scalars": 0})
        events.Reload()
        wanted, seen = maps(lines), 0
        if sorted(events.Tags()["images"]) != sorted(wanted):
            sys.exit(f"images {events.Tags()['images']}, not {sorted(wanted)}")
        for tag, by_step in wanted.items():
            found = {e.step: e for e in events.Images(tag)}
            if sorted(found) != sorted(by_step):
                sys.exit(f"{tag}: images of steps {sorted(found)}, not {sorted(by_step)}")
            for step, rows in by_step.items():
                check(tag, step, Image.open(io.BytesIO(found[step].encoded_image_string)), rows)
                seen += 1
        churn = {line["step"]: line["routing_churn"] for line in lines if line.get("routing_churn") is not None}
        scalars = {e.step: e.value for e in events.Scalars("routing_churn")}
        if sorted(churn) != sorted(scalars) or any(abs(churn[s] - scalars[s]) > 1e-7 for s in churn):
            sys.exit(f"routing_churn: {scalars}, not {churn}")
        if not any(v for rows in wanted["drop_rate_by_layer"].values() for row in rows for v in row) or not any(churn.values()):
            sys.exit("a run without drops or churn shows nothing")
    print(f"compare-tensorboard: TensorBoard reads {seen} images, and every pixel is that of its number")


if __name__ == "__main__":
    main()
