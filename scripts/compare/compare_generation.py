#!/usr/bin/env python3
"""Tokens a second of `ltrain generate` on this CPU, beside the time of reading the model's weights once from memory and,
where the Python of PYTHON has torch and transformers, beside transformers' generate.
Writes docs/measurements/compare-generation_CPU_DATE.md. Needs: build/ (scripts/build.sh), a quiet machine, and
for the 1B shape 2.5 GB of disk and 12 GB of memory; --shapes quickstart for a look."""
# build: ltrain memory_read
import argparse
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time

import measure

SHAPES = {  # vocabulary, hidden, feed-forward, layers, heads, key-value heads
    "1b": (128256, 2048, 8192, 16, 32, 8),  # Llama-3.2-1B
    "10m": (257, 320, 864, 8, 5, 5),  # fits the last cache of a server
    "quickstart": (257, 128, 352, 4, 4, 4),  # recipes/quickstart.yaml: fits the second caches of two cores
}
TOKENS = {"1b": 24}  # 240 of others
CONTEXT = 256


def config(shape):
    vocab, hidden, ffn, layers, heads, kv_heads = SHAPES[shape]
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=vocab, hidden_size=hidden,
                intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv_heads, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, rope_theta=5e5,
                hidden_act="silu", tie_word_embeddings=True, torch_dtype="bfloat16", bos_token_id=0, eos_token_id=0,
                attention_bias=False, mlp_bias=False, head_dim=hidden // heads)


def tensors(c):
    kv = c["num_key_value_heads"] * c["head_dim"]
    h, f = c["hidden_size"], c["intermediate_size"]
    yield "model.embed_tokens.weight", [c["vocab_size"], h]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", [h]
        yield p + "post_attention_layernorm.weight", [h]
        for name, shape in (("q", [h, h]), ("k", [kv, h]), ("v", [kv, h]), ("o", [h, h])):
            yield f"{p}self_attn.{name}_proj.weight", shape
        for name, shape in (("gate", [f, h]), ("up", [f, h]), ("down", [h, f])):
            yield f"{p}mlp.{name}_proj.weight", shape
    yield "model.norm.weight", [h]


def write_model(folder, shape):
    """A folder with weights of about 0.02; the number of parameters."""
    c = config(shape)
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(c, out)
    header, offset = {}, 0
    for name, dims in tensors(c):
        size = 2
        for d in dims:
            size *= d
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(1)
    # bf16 of 2^-6 or so with any sign and fraction; a block of them again and again.
    block = b"".join(struct.pack("<H", rng.choice((0x3c80, 0xbc80)) + rng.randrange(128)) for _ in range(1 << 20))
    with open(os.path.join(folder, "model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, offset, len(block)):
            out.write(block[:min(len(block), offset - at)])
    return offset // 2


def ltrain_seconds(binary, folder, tokens, threads):
    """Of generating `tokens`, without loading the model."""
    done = subprocess.run([binary, "generate", folder, "--prompt", "a", "--tokens", str(tokens), "--temperature", "0",
                           "--ignore-end", "--threads", str(threads)], capture_output=True, check=False)
    said = done.stderr.decode()
    if done.returncode:
        sys.exit(said)
    made, rate = re.search(r"(\d+) tokens in [\d.]+ s, ([\d.]+) tokens/s", said).groups()
    assert int(made) == tokens
    return tokens / float(rate)


def transformers_seconds(folder, tokens, threads):
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError:
        return None
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def once(count):
        begin = time.monotonic()
        with torch.no_grad():
            out = model.generate(torch.tensor([[97]]), max_new_tokens=count, min_new_tokens=count, do_sample=False)
        assert out.shape[1] == count + 1
        return time.monotonic() - begin

    once(2)
    return once(tokens)


def figures(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def compare(shape, o):
    """The section of the report and the record of one shape."""
    tokens = TOKENS.get(shape, 240)
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_model(folder, shape)
        peer = os.path.join(os.path.dirname(o.binary), "memory_read")
        environment = dict(os.environ, OMP_NUM_THREADS=str(o.threads))
        ours, reads, theirs = [], [], []
        for _ in range(o.rounds):
            ours.append(ltrain_seconds(o.binary, folder, tokens, o.threads) / tokens * 1e3)
            read = subprocess.run([peer, str(parameters * 4), "5" if parameters > 1e9 else "50"], capture_output=True,
                                  check=True, env=environment)
            reads += json.loads(read.stdout)["read_ms"]
            if (seconds := transformers_seconds(folder, tokens, o.threads)) is not None:
                theirs.append(seconds / tokens * 1e3)
    rows = [["", "ms a token, median (least to most)"]]
    record = {"parameters": parameters, "tokens": tokens, "threads": o.threads}
    for name, values in (("ltrain generate, fp32", ours), ("reading the weights once", reads),
                         ("transformers' generate, fp32", theirs)):
        if not values:
            continue
        s = record[name] = measure.spread(values)
        rows.append([name, f"{s['median']:.3g} ({s['min']:.3g} to {s['max']:.3g})"])
    record["of reading"] = record["ltrain generate, fp32"]["median"] / record["reading the weights once"]["median"]
    note = f"ltrain takes {record['of reading']:.2f} times the time of reading {figures(parameters * 4 / 1e6)} MB once."
    if theirs:
        record["of transformers"] = record["ltrain generate, fp32"]["median"] / measure.spread(theirs)["median"]
        note += f" transformers takes {1 / record['of transformers']:.2f} times as long as ltrain."
    title = f"{shape}: one prompt, {figures(parameters / 1e6)} million parameters, {tokens} tokens, {o.threads} threads"
    return (title, rows, note), record


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--out", default=measure.PAGES)
    a.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--threads", type=int, default=os.cpu_count())
    o = a.parse_args()
    compared = {shape: compare(shape, o) for shape in o.shapes}
    measure.write_report(o.out, "compare-generation", "Generation on this CPU",
                         ["scripts/compare.sh generation " + " ".join(sys.argv[1:])],
                         [section for section, _ in compared.values()],
                         {shape: record for shape, (_, record) in compared.items()})


if __name__ == "__main__":
    main()
