#!/usr/bin/env python3
"""Writes tests/golden/torch_*.safetensors: tiny models trained 20 steps by PyTorch in fp32, llama_compressed in fp64.

Each file holds the initial weights (bf16, exact), the tokens of every step, the learning rates, the losses, the
gradient norms before clipping, and the gradients of the first step; the model's settings are in its metadata. In
llama_compressed the backward reads activations as codes of 8 bits. Arguments: the files to write; default: all.
tests/models/golden_test.cpp trains the same with ltrain. Needs Debian's python3-torch; the tests do not.

The models are written out here from their definitions (Hugging Face's names and RoPE, [out, in] weights), so that
nothing is shared with what they check.
"""
import json
import math
import sys

import torch
import torch.nn.functional as F
from golden_tools import GOLDEN, hash_name, philox, write_safetensors

STEPS, BATCH, SEQ = 20, 4, 16
SEED = 1234  # ProgramOptions::seed
RANDOM = {}  # numbers in (0, 1) that were made
CLIP, WEIGHT_DECAY, BETAS, EPS = 0.5, 0.1, (0.9, 0.95), 1e-8


def rope_tables(c):
    """cos, sin of shape (SEQ, head_dim), as transformers' LlamaRotaryEmbedding with rope_type llama3."""
    d = c["head_dim"]
    inv_freq = 1.0 / (c["rope_theta"] ** (torch.arange(0, d, 2, dtype=torch.float64) / d))
    if c["rope_factor"] != 1.0:
        old, factor = c["rope_original"], c["rope_factor"]
        low, high = c["rope_low_freq"], c["rope_high_freq"]
        wavelen = 2 * math.pi / inv_freq
        smooth = (old / wavelen - low) / (high - low)
        middle = (1 - smooth) * inv_freq / factor + smooth * inv_freq
        inv_freq = torch.where(wavelen > old / low, inv_freq / factor,
                               torch.where(wavelen < old / high, inv_freq, middle))
    angles = torch.arange(SEQ, dtype=torch.float64)[:, None] * inv_freq[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().float(), angles.sin().float()


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def attention(q, k, v):
    """(B, heads, S, d), causal."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    mask = torch.ones(SEQ, SEQ, dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def heads(x, d):
    return x.view(x.shape[0], SEQ, -1, d).transpose(1, 2)


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def rms_norm(x, w, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w


class Saved:
    """Ops whose backward reads a saved tensor, as codes of 8 bits where c["compressed"] names the tensor.

    Forward and all else in the backward are exact. int8 is rounded by ltrain's random numbers of seed, layer, tensor,
    sample, position and channel; fp8 to nearest.
    """
    now = 0  # the step

    def __init__(self, c):
        self.kinds, self.layer = c.get("compressed", {}), 0

    def coded(self, name, x, sections=1):
        """x (B, S, channels) as its codes say: the scale of 128 channels is their largest magnitude / 127, or 448."""
        kind = self.kinds.get(name)
        if kind is None:
            return x
        parts = []
        for section in x.chunk(sections, dim=-1):
            for group in section.split(128, dim=-1):
                scale = group.abs().amax(-1, keepdim=True) / (448 if kind == "fp8" else 127)
                if kind == "fp8":
                    parts.append((group / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale)
                    continue
                v, first = group / scale, sum(p.shape[-1] for p in parts)
                u = self.uniforms(name, x.shape[-1])[..., first:first + v.shape[-1]]
                parts.append((v.floor() + (u < v - v.floor())) * scale)
        return torch.cat(parts, dim=-1)

    def uniforms(self, name, channels):
        key = (name, self.layer, self.now)
        if key not in RANDOM:
            calls = math.ceil(channels / 4)
            stream = hash_name(f"layers.{self.layer}.{name}")
            tokens = ((self.now * BATCH + b) * SEQ + s for b in range(BATCH) for s in range(SEQ))
            words = [[w for i in range(calls) for w in philox(SEED, stream, t * calls + i)][:channels] for t in tokens]
            RANDOM[key] = ((torch.tensor(words).view(BATCH, SEQ, channels) // 512).double() + 0.5) / 2**23
        return RANDOM[key]

    def linear(self, name, x, w):
        if name not in self.kinds:
            return F.linear(x, w)
        kept = self.coded(name, x.detach())
        # The gradient of x by the exact w, that of w by the codes.
        exact = F.linear(x, w.detach())
        return WithGradientOf.apply(exact.detach(), exact, F.linear(kept, w))

    def swiglu(self, name, gate, up):
        exact = F.silu(gate) * up
        if name not in self.kinds:
            return exact
        both = torch.cat((gate, up), dim=-1)
        kept = self.coded(name, both.detach(), sections=2)
        # Gradients pass to gate and up as if their values were those of the codes.
        a, b = WithGradientOf.apply(kept, both).chunk(2, dim=-1)
        return WithGradientOf.apply(exact.detach(), F.silu(a) * b)

    def rms_norm(self, name, x, w, eps):
        if name not in self.kinds:
            return rms_norm(x, w, eps)
        return RmsNormOfCodes.apply(x, w, eps, self.coded(name, x.detach()))


class WithGradientOf(torch.autograd.Function):
    """The first argument's value, with the gradients of the others."""

    @staticmethod
    def forward(ctx, value, *others):
        ctx.others = len(others)
        return value.clone()

    @staticmethod
    def backward(ctx, dy):
        return None, *([dy] * ctx.others)


class RmsNormOfCodes(torch.autograd.Function):
    """RMSNorm whose backward reads codes of x, and the exact 1 / rms."""

    @staticmethod
    def forward(ctx, x, w, eps, kept):
        rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(kept * rstd, rstd, w)
        return x * rstd * w

    @staticmethod
    def backward(ctx, dy):
        normed, rstd, w = ctx.saved_tensors
        g = dy * w
        dx = rstd * (g - normed * (g * normed).mean(-1, keepdim=True))
        return dx, (dy * normed).sum((0, 1)), None, None


def llama(c, p, tokens):
    x, d, eps = F.embedding(tokens, p["model.embed_tokens.weight"]), c["head_dim"], c["norm_eps"]
    cos, sin = (t.to(x.dtype) for t in rope_tables(c))
    saved = Saved(c)
    for i in range(c["num_hidden_layers"]):
        saved.layer = i
        w = {k[len(f"model.layers.{i}."):-len(".weight")]: v for k, v in p.items() if k.startswith(f"model.layers.{i}.")}
        h = rms_norm(x, w["input_layernorm"], eps)
        q, k, v = (heads(saved.linear("attention_norm", h, w[f"self_attn.{n}_proj"]), d) for n in "qkv")
        q, k = (t * cos + rotate_half(t) * sin for t in (q, k))
        group = c["num_attention_heads"] // c["num_key_value_heads"]
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        x = x + F.linear(attention(q, k, v).transpose(1, 2).flatten(2), w["self_attn.o_proj"])
        h = saved.rms_norm("residual", x, w["post_attention_layernorm"], eps)
        gate, up = (saved.linear("mlp_norm", h, w[f"mlp.{n}_proj"]) for n in ("gate", "up"))
        x = x + saved.linear("mlp_activation", saved.swiglu("mlp_hidden", gate, up), w["mlp.down_proj"])
    x = rms_norm(x, p["model.norm.weight"], eps)
    return F.linear(x, p["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"])


def gpt2(c, p, tokens):
    d, eps = c["head_dim"], c["norm_eps"]
    norm = lambda x, n: F.layer_norm(x, (c["hidden_size"],), p[n + ".weight"], p[n + ".bias"], eps)
    linear = lambda x, n: F.linear(x, p[n + ".weight"], p[n + ".bias"])
    x = F.embedding(tokens, p["transformer.wte.weight"]) + p["transformer.wpe.weight"][:SEQ]
    for i in range(c["num_hidden_layers"]):
        b = f"transformer.h.{i}."
        q, k, v = (heads(t, d) for t in linear(norm(x, b + "ln_1"), b + "attn.c_attn").split(c["hidden_size"], dim=-1))
        x = x + linear(attention(q, k, v).transpose(1, 2).flatten(2), b + "attn.c_proj")
        x = x + linear(gelu_tanh(linear(norm(x, b + "ln_2"), b + "mlp.c_fc")), b + "mlp.c_proj")
    return F.linear(norm(x, "transformer.ln_f"), p["transformer.wte.weight"])


def parameters(c, generator):
    h, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    shapes = {}
    if c["architecture"] == "gpt2":
        shapes["transformer.wte.weight"] = (v, h)
        shapes["transformer.wpe.weight"] = (c["max_position_embeddings"], h)
        for i in range(c["num_hidden_layers"]):
            b = f"transformer.h.{i}."
            for n, s in (("attn.c_attn", (3 * h, h)), ("attn.c_proj", (h, h)), ("mlp.c_fc", (f, h)), ("mlp.c_proj", (h, f))):
                shapes[b + n + ".weight"], shapes[b + n + ".bias"] = s, s[:1]
            for n in ("ln_1", "ln_2"):
                shapes[b + n + ".weight"] = shapes[b + n + ".bias"] = (h,)
        shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = (h,)
    else:
        q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
        shapes["model.embed_tokens.weight"] = (v, h)
        for i in range(c["num_hidden_layers"]):
            b = f"model.layers.{i}."
            for n, s in (("self_attn.q_proj", (q, h)), ("self_attn.k_proj", (kv, h)), ("self_attn.v_proj", (kv, h)),
                         ("self_attn.o_proj", (h, q)), ("mlp.gate_proj", (f, h)), ("mlp.up_proj", (f, h)),
                         ("mlp.down_proj", (h, f)), ("input_layernorm", (h,)), ("post_attention_layernorm", (h,))):
                shapes[b + n + ".weight"] = s
        shapes["model.norm.weight"] = (h,)
        if not c["tie_word_embeddings"]:
            shapes["lm_head.weight"] = (v, h)
    out = {}
    for name, shape in shapes.items():
        value = 0.1 * torch.randn(shape, generator=generator)
        if len(shape) == 1 and name.endswith(".weight"):
            value += 1  # norms
        value = value.bfloat16().float()  # exact in the file's bf16
        # In fp64 no number is as near to the border of two codes as its last bit.
        out[name] = (value.double() if "compressed" in c else value).requires_grad_()
    return out


def train(name, c):
    generator = torch.Generator().manual_seed(1)
    p = parameters(c, generator)
    forward = gpt2 if c["architecture"] == "gpt2" else llama
    decayed = [v for v in p.values() if v.dim() == 2]
    rest = [v for v in p.values() if v.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": rest, "weight_decay": 0.0}],
                                  lr=0.0, betas=BETAS, eps=EPS)
    tokens = torch.randint(0, c["vocab_size"], (STEPS, BATCH, SEQ + 1), generator=generator)
    tokens[:, 1:] = tokens[:, :1].roll(3, -1)  # rows alike, so that there is something to learn
    tokens[1:] = tokens[:1]
    targets = tokens[:, :, 1:].clone()
    targets[:, 2, SEQ - 5:] = -1  # not counted
    record = {"weight." + n: v.detach().bfloat16() for n, v in p.items()}
    lrs, losses, norms = [], [], []
    for step in range(STEPS):
        Saved.now = step
        lr = 6e-3 * (1 - step / (2 * STEPS))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        logits = forward(c, p, tokens[step, :, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), targets[step].flatten(), ignore_index=-1)
        loss.backward()
        if step == 0:
            record.update({"grad." + n: v.grad.float() for n, v in p.items()})
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), CLIP).item())
        optimizer.step()
        lrs.append(lr)
        losses.append(loss.item())
    record["tokens"], record["targets"] = tokens[:, :, :-1].int(), targets.int()
    for key, values in (("lr", lrs), ("loss", losses), ("grad_norm", norms)):
        record[key] = torch.tensor(values, dtype=torch.float64)
    metadata = {k: json.dumps(v) if isinstance(v, dict) else str(v) for k, v in c.items()}
    metadata.update(clip_grad=str(CLIP), weight_decay=str(WEIGHT_DECAY), beta1=str(BETAS[0]), beta2=str(BETAS[1]),
                    eps=str(EPS), torch=torch.__version__)
    path = GOLDEN / f"torch_{name}.safetensors"
    write_safetensors(path, record, metadata)
    print(f"{path}: {path.stat().st_size} bytes, loss {losses[0]:.6f} to {losses[-1]:.6f}, norm {norms[0]:.4f}")


def main():
    torch.set_num_threads(1)
    base = dict(vocab_size=41, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, head_dim=6,
                max_position_embeddings=20, rope_theta=10000.0, rope_factor=1.0, rope_low_freq=1.0, rope_high_freq=4.0,
                rope_original=8192, norm_eps=1e-5)
    llama = dict(base, architecture="llama", intermediate_size=40, num_key_value_heads=2, tie_word_embeddings=0)
    # Groups of 128 and of 32 channels, of gate and of up.
    compressed = {"attention_norm": "int8", "residual": "int8", "mlp_norm": "int8", "mlp_activation": "int8",
                  "mlp_hidden": "fp8"}
    files = {
        "gpt2": dict(base, architecture="gpt2", intermediate_size=96, num_key_value_heads=4, tie_word_embeddings=1),
        "llama": llama,
        # Wavelengths of 2 pi, 12, 26, ...: below, in and above the blended range of 8 to 16 positions.
        "llama3": dict(llama, num_key_value_heads=1, tie_word_embeddings=1, rope_theta=8.0, rope_factor=4.0,
                       rope_original=16, rope_high_freq=2.0, norm_eps=1e-6),
        "llama_compressed": dict(llama, intermediate_size=160, compressed=compressed)}
    for name in sys.argv[1:] or files:
        train(name, files[name])


if __name__ == "__main__":
    main()
