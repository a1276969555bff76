#!/usr/bin/env python3
"""The peer: a GPT-2 training step by PyTorch on the CPU, in several variants. Prints one JSON object.

Reads ltrain's checkpoint, so that both sides start from the same weights. Runs on Debian's PyTorch 1.13 and on the
newest; used by scripts/compare.sh torch alone.
"""
import argparse
import json
import math
import os
import struct
import time

import torch
import torch.nn.functional as F

from measure import read_tokens

LAYERS, HEADS, HIDDEN = 12, 12, 768


def load_checkpoint(folder):
    """Name -> fp32 tensor, from the pieces in manifest.json."""
    with open(os.path.join(folder, "manifest.json")) as f:
        manifest = json.load(f)
    shards = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as f:
                size = struct.unpack("<Q", f.read(8))[0]
                shards[name] = (json.loads(f.read(size)), bytearray(f.read()))
    out = {}
    for name, tensor in manifest["tensors"].items():
        if name.startswith("optimizer/"):
            continue
        assert tensor["dtype"] == "F32", f"{name}: {tensor['dtype']}"
        whole = torch.full(tensor["shape"], float("nan"))
        for piece in tensor["pieces"]:  # a box each; gpt2's c_attn is one for q, k and v
            header, data = shards[manifest["files"][piece["file"]]["name"]]
            begin, end = header[piece["key"]]["data_offsets"]
            values = torch.frombuffer(data, dtype=torch.float32, offset=begin, count=(end - begin) // 4)
            assert values.numel() == torch.Size(piece["extent"]).numel(), f"{name}: a part of a box; save with one rank"
            box = tuple(slice(o, o + e) for o, e in zip(piece["offset"], piece["extent"]))
            whole[box] = values.reshape(piece["extent"])
        assert not whole.isnan().any(), f"{name}: has gaps"
        out[name] = whole
    return out


def random_weights(vocab):
    shapes = {"transformer.wte.weight": (vocab, HIDDEN), "transformer.wpe.weight": (1024, HIDDEN)}
    for i in range(LAYERS):
        b = f"transformer.h.{i}."
        for n, s in (("attn.c_attn", (3 * HIDDEN, HIDDEN)), ("attn.c_proj", (HIDDEN, HIDDEN)),
                     ("mlp.c_fc", (4 * HIDDEN, HIDDEN)), ("mlp.c_proj", (HIDDEN, 4 * HIDDEN))):
            shapes[b + n + ".weight"], shapes[b + n + ".bias"] = s, s[:1]
        for n in ("ln_1", "ln_2"):
            shapes[b + n + ".weight"] = shapes[b + n + ".bias"] = (HIDDEN,)
    shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = (HIDDEN,)
    return {n: 0.02 * torch.randn(s) + (1.0 if len(s) == 1 and n.endswith(".weight") else 0.0) for n, s in shapes.items()}


def manual_attention(q, k, v, mask):
    return ((q @ k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1])) + mask).softmax(-1) @ v


def baddbmm_attention(q, k, v, mask):
    b, h, s, d = q.shape
    q, k, v = (t.reshape(b * h, s, d) for t in (q, k, v))
    scores = torch.baddbmm(mask.to(q.dtype).expand(b * h, s, s), q, k.transpose(1, 2), alpha=1 / math.sqrt(d))
    return torch.bmm(scores.softmax(-1), v).view(b, h, s, d)


def builtin_attention(q, k, v, mask):
    f = getattr(F, "scaled_dot_product_attention", None)
    if f:
        return f(q, k, v, is_causal=True)
    return F._scaled_dot_product_attention(q, k, v, None, 0.0, False, True)[0]  # 1.13's private one


ATTENTION = {"manual": manual_attention, "baddbmm": baddbmm_attention, "builtin": builtin_attention}


def dense_linear(x, w, b):
    return F.linear(x, w, b)


def mkldnn_linear(x, w, b):
    """oneDNN's product, with its autograd; activations are converted at every call, weights stay dense."""
    return torch._C._nn.mkldnn_linear(x.to_mkldnn(), w, b).to_dense()


LINEAR = {"dense": dense_linear, "mkldnn": mkldnn_linear}


def forward(p, tokens, targets, mask, attention, linear):
    norm = lambda x, n: F.layer_norm(x, (HIDDEN,), p[n + ".weight"], p[n + ".bias"], 1e-5)
    s = tokens.shape[1]
    x = F.embedding(tokens, p["transformer.wte.weight"]) + p["transformer.wpe.weight"][:s]
    for i in range(LAYERS):
        b = f"transformer.h.{i}."
        qkv = linear(norm(x, b + "ln_1"), p[b + "attn.c_attn.weight"], p[b + "attn.c_attn.bias"])
        q, k, v = (t.view(t.shape[0], s, HEADS, HIDDEN // HEADS).transpose(1, 2) for t in qkv.split(HIDDEN, dim=-1))
        y = attention(q, k, v, mask).transpose(1, 2).reshape(x.shape)
        x = x + linear(y, p[b + "attn.c_proj.weight"], p[b + "attn.c_proj.bias"])
        h = F.gelu(linear(norm(x, b + "ln_2"), p[b + "mlp.c_fc.weight"], p[b + "mlp.c_fc.bias"]), approximate="tanh")
        x = x + linear(h, p[b + "mlp.c_proj.weight"], p[b + "mlp.c_proj.bias"])
    logits = linear(norm(x, "transformer.ln_f"), p["transformer.wte.weight"], None)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def clip(grads, limit):
    """clip_grad_norm_ with the multi-tensor kernels."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    scale = min(1.0, limit / (norm.item() + 1e-6))
    if scale < 1.0:
        torch._foreach_mul_(grads, scale)


def make_optimizer(p, kind):
    groups = [{"params": [v for v in p.values() if v.dim() == 2], "weight_decay": 0.1},
              {"params": [v for v in p.values() if v.dim() == 1], "weight_decay": 0.0}]
    how = {"fused": True} if kind == "fused" else {"foreach": kind == "foreach"}
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, **how)


def matmul_rate(batch, seq, vocab, dtype):
    """Operations per second of each product of a step, and the most of them; and the operations of a step."""
    t = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    m, rates, operations = batch * seq, {}, 0
    for n, k, count in ((3 * HIDDEN, HIDDEN, LAYERS), (HIDDEN, HIDDEN, LAYERS), (4 * HIDDEN, HIDDEN, LAYERS),
                        (HIDDEN, 4 * HIDDEN, LAYERS), (vocab, HIDDEN, 1)):
        x, w, dy = torch.randn(m, k).to(t), torch.randn(n, k).to(t), torch.randn(m, n).to(t)
        for name, f in (("y", lambda: x @ w.t()), ("dx", lambda: dy @ w), ("dw", lambda: dy.t() @ x)):
            times = []
            for _ in range(8):
                begin = time.perf_counter()
                f()
                times.append(time.perf_counter() - begin)
            rates[f"{name} {m}x{n}x{k}"] = 2 * m * n * k / sorted(times[1:])[3]
        operations += 6 * m * n * k * count
    return {"rates": rates, "best": max(rates.values()), "operations": operations}


def blas_libraries():
    with open("/proc/self/maps") as f:
        return sorted({os.path.realpath(line.split()[-1]) for line in f if "blas" in line or "blis" in line})


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--checkpoint", help="a checkpoint of ltrain; random weights without")
    a.add_argument("--data", help="PREFIX of the token file: its first batch*seq+1 tokens are the batch")
    a.add_argument("--vocab", type=int, default=50304)
    a.add_argument("--batch", type=int, default=4)
    a.add_argument("--seq", type=int, default=64)
    a.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    a.add_argument("--attention", choices=ATTENTION, default="manual")
    a.add_argument("--linear", choices=LINEAR, default="dense")
    a.add_argument("--adamw", choices=("foreach", "loop", "fused"), default="foreach")
    a.add_argument("--compile", action="store_true", help="forward and backward by torch.compile")
    a.add_argument("--matmul-only", action="store_true", help="rates of the step's products alone")
    a.add_argument("--adamw-only", action="store_true", help="time the optimizer's step alone")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--warmup", type=int, default=2)
    a.add_argument("--steps", type=int, default=5)
    o = a.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    if o.matmul_only:
        print(json.dumps(matmul_rate(o.batch, o.seq, o.vocab, o.dtype)))
        return
    p = load_checkpoint(o.checkpoint) if o.checkpoint else random_weights(o.vocab)
    for v in p.values():
        v.requires_grad_()
    optimizer = make_optimizer(p, o.adamw)
    result = {"torch": torch.__version__, "blas": blas_libraries(), "loss": [], "step_ms": [], "adamw_ms": []}
    if any("pthread" in lib for lib in result["blas"]):
        raise SystemExit(f"the peer would run on {result['blas']}: OpenBLAS with pthreads is slow beside OpenMP")
    if o.adamw_only:
        for v in p.values():
            v.grad = 0.01 * torch.randn_like(v)
    else:
        tokens = read_tokens(o.data)
        rows = [tokens[i * o.seq:i * o.seq + o.seq + 1] for i in range(o.batch)]
        batch = torch.tensor(rows)
        inputs, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
        mask = torch.full((o.seq, o.seq), float("-inf")).triu(1)
    compute = torch.compile(forward) if o.compile else forward
    for step in range(o.warmup + o.steps):
        begin = time.perf_counter()
        if not o.adamw_only:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o.dtype == "bf16"):
                loss = compute(p, inputs, targets, mask, ATTENTION[o.attention], LINEAR[o.linear])
            loss.backward()
            clip([v.grad for v in p.values()], 1.0)
            result["loss"].append(loss.item())
        before = time.perf_counter()
        optimizer.step()
        after = time.perf_counter()
        if not o.adamw_only:
            optimizer.zero_grad(set_to_none=True)
        if step >= o.warmup:
            result["step_ms"].append(1e3 * (time.perf_counter() - begin))
            result["adamw_ms"].append(1e3 * (after - before))
    print(json.dumps(result))


main()
