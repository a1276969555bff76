#!/usr/bin/env python3
"""Writes tests/golden/optimizer_runs.txt: the models of make-golden.py trained 8 steps with every optimizer, in double.

Initial weights, tokens and targets are those of tests/golden/torch_{gpt2,llama}.safetensors. AdamW, Adam, SGD, Adafactor
and Muon are torch.optim's; the others are written out here from their papers, with the blocks, codes and random signs
that docs/optimizers.md describes, and share no code with ltrain. Each line has an architecture, an optimizer, and the
losses, or for a tensor its length and its product with a fixed vector, as hexadecimal doubles.
tests/models/optimizer_runs_test.cpp trains the same with ltrain. Needs PyTorch 2.9 or newer (Muon) and numpy:

    python3 -m venv venv && venv/bin/pip install torch numpy && venv/bin/python scripts/golden/make-optimizer-runs.py
"""
import importlib.util
import json
import math
import os
import struct

import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "..", "tests", "golden")
spec = importlib.util.spec_from_file_location("make_golden", os.path.join(HERE, "make-golden.py"))
golden = importlib.util.module_from_spec(spec)
spec.loader.exec_module(golden)

STEPS, DECAY, B1, B2, EPS = 8, 0.1, 0.9, 0.95, 1e-8
LION = (0.9, 0.99)
FREEZE = 4  # last step of the warm-up of 1-bit optimizers
INTERVAL, RADIUS, SEED = 3, 1e-4, 1234  # Sophia
GAMMA = {"hutchinson": 0.01, "gauss_newton": 20.0}  # with the paper's 0.05 so few tokens' squares leave signs alone
LAMB_MOST, LAMB_LEAST, LAMB_BETA = 10.0, 0.01, 0.9  # 1-bit LAMB, DeepSpeed's defaults
FACTOR_MOST, FACTOR_LEAST, FACTOR_CHANGE = 4.0, 0.5, 0.1


TYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "I32": torch.int32}


def read_safetensors(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        data = f.read()
    meta = header.pop("__metadata__")
    tensors = {}
    for name, e in header.items():
        begin, end = e["data_offsets"]
        tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=TYPES[e["dtype"]]).reshape(e["shape"])
    return tensors, meta


def config(meta):
    c = {}
    for key, value in meta.items():
        try:
            c[key] = int(value)
        except ValueError:
            try:
                c[key] = float(value)
            except ValueError:
                c[key] = value
    return c


class Job:
    """A model in double with its initial weights, and the gradients of a step."""

    def __init__(self, architecture):
        file, meta = read_safetensors(os.path.join(GOLDEN, f"torch_{architecture}.safetensors"))
        self.c = config(meta)
        self.c["rope_factor"] = float(self.c["rope_factor"])
        self.forward = golden.gpt2 if architecture == "gpt2" else golden.llama
        self.gpt2 = architecture == "gpt2"
        self.w = {n[len("weight."):]: t.double() for n, t in file.items() if n.startswith("weight.")}
        self.tokens, self.targets = file["tokens"].long(), file["targets"].long()
        self.lr = file["lr"].tolist()

    def loss(self, p, step, rows=slice(None), draw=None):
        """Of some rows, over the number of counted tokens of all. `draw`: gives other targets, from logits."""
        logits = self.forward(self.c, p, self.tokens[step][rows])
        targets = self.targets[step][rows]
        if draw:
            targets = torch.where(targets >= 0, draw(logits.detach()), targets)
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
        return total / self.counted(step)

    def counted(self, step):
        return (self.targets[step] >= 0).sum().item()

    def gradients(self, w, step, rows=slice(None), draw=None):
        """The loss, and its gradient by name."""
        p = {n: t.detach().clone().requires_grad_() for n, t in w.items()}
        loss = self.loss(p, step, rows, draw)
        loss.backward()
        return loss.item(), {n: t.grad for n, t in p.items()}

    def units(self):
        """Tensors that lie behind each other in memory: parts of one matrix product."""
        units, done = [], set()
        for name in sorted(self.w, key=lambda n: not (".q_proj." in n or ".gate_proj." in n)):  # first parts first
            if name in done:
                continue
            unit = [name]
            for first, others in ((".q_proj.", (".k_proj.", ".v_proj.")), (".gate_proj.", (".up_proj.",))):
                if first in name:
                    unit += [name.replace(first, o) for o in others]
            units.append(unit)
            done.update(unit)
        return units


def is_embedding(name):
    return any(part in name for part in ("wte", "wpe", "embed_tokens", "lm_head"))


def decay_of(w):
    return DECAY if w.dim() == 2 else 0.0


# ---- torch.optim's ----

def run_torch(job, make, apart=False):
    """`make(matrices, embeddings, vectors)` gives optimizers of lists of parameters. `apart`: q, k and v of gpt2's fused
    matrix are three of them, as they are three maps."""
    leaves, p = {}, {}
    for name, t in job.w.items():
        parts = t.chunk(3) if apart and name.endswith("c_attn.weight") else [t]
        leaves[name] = [x.clone().requires_grad_() for x in parts]
    groups = {"matrix": [], "embedding": [], "vector": []}
    for name, parts in leaves.items():
        kind = "vector" if parts[0].dim() == 1 else "embedding" if is_embedding(name) else "matrix"
        groups[kind] += parts
    optimizers = make(groups["matrix"], groups["embedding"], groups["vector"])
    losses = []
    for step in range(STEPS):
        for o in optimizers:
            o.zero_grad()
            for g in o.param_groups:
                g["lr"] = job.lr[step]
        p = {n: parts[0] if len(parts) == 1 else torch.cat(parts) for n, parts in leaves.items()}
        loss = job.loss(p, step)
        loss.backward()
        for o in optimizers:
            o.step()
        losses.append(loss.item())
    return losses, {n: torch.cat(parts).detach() if len(parts) > 1 else parts[0].detach() for n, parts in leaves.items()}


def simple(cls, **settings):
    def make(matrices, embeddings, vectors):
        return [cls([{"params": matrices + embeddings, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
                    lr=0.1, **settings)]
    return make


def muon(adjust):
    def make(matrices, embeddings, vectors):
        adamw = torch.optim.AdamW([{"params": embeddings, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=0.1, betas=(B1, B2), eps=EPS)
        return [torch.optim.Muon(matrices, lr=0.1, weight_decay=DECAY, momentum=0.95, nesterov=True,
                                 adjust_lr_fn=adjust), adamw]
    return make


# ---- from the papers ----

def adam_direction(g, m, v, t):
    m.mul_(B1).add_((1 - B1) * g)
    v.mul_(B2).add_((1 - B2) * g * g)
    return (m / (1 - B1 ** t)) / ((v / (1 - B2 ** t)).sqrt() + EPS)


def lion(job):
    w, m = {n: t.clone() for n, t in job.w.items()}, {n: torch.zeros_like(t) for n, t in job.w.items()}
    losses = []
    for step in range(STEPS):
        loss, g = job.gradients(w, step)
        losses.append(loss)
        for n in w:
            update = torch.sign(LION[0] * m[n] + (1 - LION[0]) * g[n])
            w[n] -= job.lr[step] * (update + decay_of(w[n]) * w[n])
            m[n] = LION[1] * m[n] + (1 - LION[1]) * g[n]
    return losses, w


def lamb(job):
    w = {n: t.clone() for n, t in job.w.items()}
    m, v = ({n: torch.zeros_like(t) for n, t in w.items()} for _ in range(2))
    losses = []
    for step in range(STEPS):
        loss, g = job.gradients(w, step)
        losses.append(loss)
        for n in w:
            u = adam_direction(g[n], m[n], v[n], step + 1) + decay_of(w[n]) * w[n]
            w[n] -= job.lr[step] * w[n].norm() / u.norm() * u
    return losses, w


def flatten(job, unit, tensors, block):
    """A unit's elements behind each other, padded with zeros to whole blocks."""
    flat = torch.cat([tensors[n].reshape(-1) for n in unit])
    return F.pad(flat, (0, -len(flat) % block))


def unflatten(unit, flat, like):
    out, at = {}, 0
    for n in unit:
        out[n] = flat[at:at + like[n].numel()].reshape(like[n].shape)
        at += like[n].numel()
    return out


def quantize(x, first):
    """Blocks of 256: the code c stands for (c/127)^4 resp. (c/255)^4 of the block's largest magnitude."""
    b = x.reshape(-1, 256)
    most = b.abs().amax(1, keepdim=True)
    levels = 127 if first else 255
    code = torch.floor((b.abs() / most.clamp_min(1e-300)) ** 0.25 * levels + 0.5)
    if not first:
        code = torch.where((b > 0) & (code == 0), torch.ones_like(code), code)
    return (torch.sign(b) * most * (code / levels) ** 4).reshape(-1)


def adamw8bit(job):
    w = {n: t.clone() for n, t in job.w.items()}
    m, v = ({n: torch.zeros_like(t) for n, t in w.items()} for _ in range(2))
    losses = []
    for step in range(STEPS):
        loss, g = job.gradients(w, step)
        losses.append(loss)
        for n in w:
            u = adam_direction(g[n], m[n], v[n], step + 1)
            w[n] -= job.lr[step] * (u + decay_of(w[n]) * w[n])
        for unit in job.units():
            if w[unit[0]].dim() == 1:
                continue
            for state, first in ((m, True), (v, False)):
                state.update(unflatten(unit, quantize(flatten(job, unit, state, 256), first), state))
    return losses, w


def signs_in_blocks(c, where):
    """One bit an element and the root mean square of each block of 2048, of the elements that count."""
    b, here = c.reshape(-1, 2048), where.reshape(-1, 2048)
    count = here.sum(1, keepdim=True).clamp_min(1)
    scale = ((b * here) ** 2).sum(1, keepdim=True).div(count).sqrt()
    out = torch.where(b >= 0, scale, -scale) * here
    return out.reshape(-1), ((b - out) * here).reshape(-1)


def onebit(job, use_lamb):
    """Two ranks with two rows each."""
    ranks = 2
    w = {n: t.clone() for n, t in job.w.items()}
    m, v = ({n: torch.zeros_like(t) for n, t in w.items()} for _ in range(2))
    fresh, coefficient, factor = {}, {n: 0.0 for n in w}, {n: 1.0 for n in w}
    sent, summed = {}, {}
    losses = []
    for step in range(STEPS):
        t = step + 1
        parts = [job.gradients(w, step, slice(2 * r, 2 * r + 2)) for r in range(ranks)]
        losses.append(sum(loss for loss, _ in parts))
        frozen = t > FREEZE
        if not frozen:
            for n in w:
                g = sum(grads[n] for _, grads in parts)
                m[n] = B1 * m[n] + (1 - B1) * g
                v[n] = B2 * v[n] + (1 - B2) * g * g
        else:
            if t == FREEZE + 1:
                fresh = {n: x.clone() for n, x in v.items()}
            for unit in job.units():
                key, where = unit[0], flatten(job, unit, v, 2048 * ranks) != 0
                total = 0
                for r in range(ranks):
                    own = {n: B1 * m[n] + (1 - B1) * ranks * parts[r][1][n] for n in unit}
                    c = flatten(job, unit, own, 2048 * ranks) + sent.get((key, r), 0)
                    out, sent[key, r] = signs_in_blocks(c * where, where)
                    total = total + out
                mean, summed[key] = signs_in_blocks((total / ranks + summed.get(key, 0)) * where, where)
                for n, x in unflatten(unit, mean, m).items():
                    made = (x - B1 * m[n]) / (1 - B1)
                    fresh[n] = B2 * fresh[n] + (1 - B2) * made * made
                    m[n] = x.clone()
        for n in w:
            if n.endswith("c_attn.bias"):
                continue  # a third of it has gradients of rounding alone, which one bit an element makes large
            below = (v[n] / (1 - B2 ** min(t, FREEZE))).sqrt() + EPS
            u = (m[n] / (1 - B1 ** t)) / below + decay_of(w[n]) * w[n]
            by = 1.0
            if use_lamb and not frozen:
                by = min(max((w[n].norm() / u.norm()).item(), LAMB_LEAST), LAMB_MOST)
                coefficient[n] = LAMB_BETA * coefficient[n] + (1 - LAMB_BETA) * by
            elif use_lamb:
                ratio = (below / ((fresh[n] / (1 - B2 ** t)).sqrt() + EPS)).max().item()
                f = min(max(ratio, FACTOR_LEAST), FACTOR_MOST)
                f = min(max(f, factor[n] * (1 - FACTOR_CHANGE)), factor[n] * (1 + FACTOR_CHANGE))
                factor[n] = f
                by = coefficient[n] * f
            w[n] -= job.lr[step] * by * u
    return losses, w


def philox(seed, stream, index):
    """Philox4x32-10 (Salmon et al., SC11) of counters (index, stream) under the key `seed`; (n, 4) of uint32."""
    mask = np.uint64(0xFFFFFFFF)
    index = np.asarray(index, dtype=np.uint64)
    c = [index & mask, index >> np.uint64(32), np.full_like(index, stream & 0xFFFFFFFF), np.full_like(index, stream >> 32)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & mask, (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=1)


def fnv1a(text):
    h = 14695981039346656037
    for byte in text.encode():
        h = (h ^ byte) * 1099511628211 % 2 ** 64
    return h


def seed_of(step):
    return (SEED + step * 0x9E3779B97F4A7C15) % 2 ** 64


def random_signs(name, shape, step):
    """Bit i of the 128 of call i / 128."""
    n = math.prod(shape)
    words = philox(seed_of(step), fnv1a("signs of " + name), np.arange((n + 127) // 128))
    bits = (words[:, :, None] >> np.arange(32, dtype=np.uint64)) & np.uint64(1)
    return torch.tensor(bits.reshape(-1)[:n].astype(np.float64) * 2 - 1).reshape(shape)


def drawn_labels(logits, step):
    """By inversion, with a number of 53 bits of each token: sample 4 step + row, position."""
    rows, length, vocab = logits.shape
    words = philox(seed_of(step), fnv1a("drawn labels"), (step - 1) * rows * length + np.arange(rows * length))
    numbers = torch.tensor((words[:, 0] << np.uint64(32) | words[:, 1]) >> np.uint64(11)).double() / 2.0 ** 53
    sums = torch.softmax(logits, -1).cumsum(-1).reshape(-1, vocab)
    return (sums <= numbers[:, None]).sum(1).reshape(rows, length)


def sophia(job, estimator):
    """Algorithm 3: with Hutchinson's estimate u * H u, H u by a difference of gradients; or with algorithm 2's, squares
    of the gradient with labels of the model, times their number."""
    w = {n: t.clone() for n, t in job.w.items()}
    m, h = ({n: torch.zeros_like(t) for n, t in w.items()} for _ in range(2))
    losses = []
    for step in range(STEPS):
        t = step + 1
        loss, g = job.gradients(w, step)
        losses.append(loss)
        if step % INTERVAL == 0 and estimator == "gauss_newton":
            _, drawn = job.gradients(w, step, draw=lambda logits: drawn_labels(logits, t))
            for n in w:
                h[n] = B2 * h[n] + (1 - B2) * job.counted(step) * drawn[n] ** 2
        elif step % INTERVAL == 0:
            u = {n: random_signs(n, x.shape, t) for n, x in w.items()}
            _, beside = job.gradients({n: x + RADIUS * u[n] for n, x in w.items()}, step)
            for n in w:
                h[n] = B2 * h[n] + (1 - B2) * u[n] * (beside[n] - g[n]) / RADIUS
        for n in w:
            m[n] = B1 * m[n] + (1 - B1) * g[n]
            w[n] -= job.lr[step] * decay_of(w[n]) * w[n]
            w[n] -= job.lr[step] * (m[n] / (GAMMA[estimator] * h[n]).clamp_min(EPS)).clamp(-1, 1)
    return losses, w


def describe(name, t):
    """Length and product with cos(0.7 i + 0.3); of gpt2's fused bias without the keys', whose gradient is rounding."""
    x = t.reshape(-1)
    weight = torch.cos(0.7 * torch.arange(len(x), dtype=torch.float64) + 0.3)
    if name.endswith("c_attn.bias"):
        third = len(x) // 3
        x, weight = (torch.cat((y[:third], y[2 * third:])) for y in (x, weight))
    return x.norm().item(), (x * weight).sum().item()


def main():
    torch.set_num_threads(1)
    torch.bfloat16 = torch.float64  # Muon computes in bf16; here in double, so that the formula is what is compared
    path = os.path.join(GOLDEN, "optimizer_runs.txt")
    with open(path, "w") as out:
        out.write(f"# PyTorch {torch.__version__.split('+')[0]}: scripts/golden/make-optimizer-runs.py\n")
        for architecture in ("gpt2", "llama"):
            torch_kinds = {
                "adamw": simple(torch.optim.AdamW, betas=(B1, B2), eps=EPS),
                "adam": simple(torch.optim.Adam, betas=(B1, B2), eps=EPS),
                "sgd": simple(torch.optim.SGD, momentum=0.9, nesterov=True),
                "adafactor": simple(torch.optim.Adafactor),
            }
            runs = {kind: (lambda job, make=make: run_torch(job, make)) for kind, make in torch_kinds.items()}
            runs["muon"] = lambda job: run_torch(job, muon("original"), apart=True)
            runs["muon_match_rms"] = lambda job: run_torch(job, muon("match_rms_adamw"), apart=True)
            runs.update(lion=lion, lamb=lamb, adamw8bit=adamw8bit, sophia_hutchinson=lambda job: sophia(job, "hutchinson"),
                        sophia_gauss_newton=lambda job: sophia(job, "gauss_newton"),
                        onebit_adam=lambda job: onebit(job, False), onebit_lamb=lambda job: onebit(job, True))
            for kind, run in runs.items():
                job = Job(architecture)
                losses, w = run(job)
                out.write(f"{architecture} {kind} losses " + " ".join(x.hex() for x in losses) + "\n")
                for name, t in w.items():
                    out.write(f"{architecture} {kind} {name} " + " ".join(x.hex() for x in describe(name, t)) + "\n")
                print(architecture, kind, [round(x, 5) for x in losses])


if __name__ == "__main__":
    main()
