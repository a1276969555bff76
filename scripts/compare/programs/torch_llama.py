#!/usr/bin/env python3
"""The strongest PyTorch trainer that a good user would have on one GPU, independent of the project's scripts/compare.

  torch_llama.py --model 1b --budget 200                    # variants of the model in the order of their worth, a process each
  torch_llama.py --model 1b --variant equal+flash           # one variant, in this process
  torch_llama.py --attention --budget 40                    # SDPA alone, without the host's latency in the times
  torch_llama.py --gemms --model 1b                         # the step's products alone: the floor of a step

A variant is NUMBERS[+OPTION...]. Numbers:
  equal     bf16 weights and activations; fp32 masters, moments, gradients: what ltrain's `precision: bf16` is
  lean      the same with bf16 gradients (`optimizer.grad_dtype: bf16`)
  pure      bf16 weights, gradients and moments, no masters: less exact than ltrain, an upper bound
  autocast  fp32 weights under torch.autocast: fp32 residual stream, weights cast in each micro-batch
Options: flash (default attention is cuDNN's), chunked (loss in parts, gradients made in the forward, no second product),
model (one graph for torch.compile; default: block by block), eager, graphs (micro-batch as one captured CUDA graph),
tune (coordinate descent), autotune (max-autotune-no-cudagraphs), fused (torch.optim.AdamW(fused=True) and
clip_grad_norm_; only pure and autocast), ckptN (N blocks computed again in the backward), budgetP (partitioner keeps P % of
activations), lt (cuBLASLt preferred).

Optimizer: weights, gradients, states are flat; norm, clipping and AdamW are a reduction and one compiled kernel, no sync.
Times: CUDA events at the ends of steps, no synchronisation between them. Each result is a JSON line as soon as it is known.
MFU: (6 N + 6 L h s) a token, N all matmul weights with the head, h = heads * head dim, causal half of attention
(12 L h s / 2: PaLM's convention, ltrain's and llm.c's), over 989 TFLOP/s (H100 SXM, H200)."""
import argparse, json, math, os, statistics, subprocess, sys, time

T0 = time.monotonic()
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", "/tmp/torch_llama_inductor")
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

MODELS = {
    "1b": dict(kind="llama", vocab=128256, hidden=2048, inter=8192, layers=16, heads=32, kv=8, tied=True, seq=4096, micro=4, accum=2),
    "8b": dict(kind="llama", vocab=128256, hidden=4096, inter=14336, layers=32, heads=32, kv=8, tied=False, seq=4096, micro=1, accum=4),
    "gpt2": dict(kind="gpt2", vocab=50304, hidden=768, inter=3072, layers=12, heads=12, kv=12, tied=True, seq=1024, micro=32, accum=1),
    "gpt2-xl": dict(kind="gpt2", vocab=50304, hidden=1600, inter=6400, layers=48, heads=25, kv=25, tied=True, seq=1024, micro=8, accum=4),
    "qwen-0.5b": dict(kind="llama", vocab=151936, hidden=896, inter=4864, layers=24, heads=14, kv=2, tied=True, seq=1024, micro=32, accum=2),
    "tiny": dict(kind="llama", vocab=512, hidden=64, inter=128, layers=3, heads=4, kv=2, tied=True, seq=64, micro=2, accum=2),
    "tiny-gpt2": dict(kind="gpt2", vocab=512, hidden=64, inter=256, layers=3, heads=4, kv=4, tied=True, seq=64, micro=2, accum=2),
}
ORDER = {"1b": ["equal", "pure", "equal+model", "autocast", "equal+graphs", "equal+flash", "equal+chunked"],
         "8b": ["lean+ckpt8", "pure", "lean+budget60", "pure+flash"],
         "gpt2": ["equal", "pure", "equal+graphs", "autocast+fused", "equal+model", "equal+flash"],
         "gpt2-xl": ["equal", "pure", "equal+graphs"], "qwen-0.5b": ["equal", "pure", "equal+graphs"],
         "tiny": ["equal", "lean", "pure", "autocast", "equal+chunked", "equal+model", "equal+eager", "equal+ckpt2", "equal+budget50",
                  "autocast+fused", "pure+fused", "equal+tune"], "tiny-gpt2": ["equal", "pure", "autocast+chunked"]}
PEAK = 989e12


def flops_per_token(c):
    d = c["hidden"] // c["heads"]
    layer = c["hidden"] * d * (2 * c["heads"] + 2 * c["kv"]) + (3 if c["kind"] == "llama" else 2) * c["hidden"] * c["inter"]
    return 6 * (c["layers"] * layer + c["vocab"] * c["hidden"]) + 6 * c["layers"] * c["heads"] * d * c["seq"]


def say(**line):
    print(json.dumps(line), flush=True)


def build(torch, c, device, o):
    """Model, and a function (tokens, targets) -> sum of the losses."""
    nn, F = torch.nn, torch.nn.functional
    d, llama = c["hidden"] // c["heads"], c["kind"] == "llama"

    class Block(nn.Module):
        def __init__(s):
            super().__init__()
            norm = (lambda: nn.RMSNorm(c["hidden"], eps=1e-5)) if llama else (lambda: nn.LayerNorm(c["hidden"]))
            s.n1, s.n2 = norm(), norm()
            s.qkv = nn.Linear(c["hidden"], (c["heads"] + 2 * c["kv"]) * d, bias=not llama)
            s.out = nn.Linear(c["heads"] * d, c["hidden"], bias=not llama)
            s.up = nn.Linear(c["hidden"], (2 if llama else 1) * c["inter"], bias=not llama)
            s.down = nn.Linear(c["inter"], c["hidden"], bias=not llama)

        def forward(s, x, cos, sin):
            b, t, _ = x.shape
            q, k, v = s.qkv(s.n1(x)).split([c["heads"] * d, c["kv"] * d, c["kv"] * d], -1)
            q, k, v = (y.view(b, t, -1, d) for y in (q, k, v))
            if llama:
                def turn(y):
                    l, r = y.float().chunk(2, -1)
                    return torch.cat((l * cos - r * sin, r * cos + l * sin), -1).to(y.dtype)
                q, k = turn(q), turn(k)
            y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                               enable_gqa=c["heads"] != c["kv"])
            x = x + s.out(y.transpose(1, 2).reshape(b, t, -1))
            h = s.up(s.n2(x))
            if llama:
                gate, up = h.chunk(2, -1)
                return x + s.down(F.silu(gate) * up)
            return x + s.down(F.gelu(h, approximate="tanh"))

    class Model(nn.Module):
        def __init__(s):
            super().__init__()
            s.tokens = nn.Embedding(c["vocab"], c["hidden"])
            s.places = None if llama else nn.Embedding(c["seq"], c["hidden"])
            s.blocks = nn.ModuleList(Block() for _ in range(c["layers"]))
            s.norm = nn.RMSNorm(c["hidden"], eps=1e-5) if llama else nn.LayerNorm(c["hidden"])
            s.head = nn.Linear(c["hidden"], c["vocab"], bias=False)
            if c["tied"]:
                s.head.weight = s.tokens.weight
            for p in s.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

    torch.manual_seed(1)
    before = torch.get_default_dtype()
    if o["numbers"] != "autocast":
        torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Model()
        torch.set_default_dtype(before)
        angle = torch.outer(torch.arange(c["seq"]).float(), 1.0 / 500000 ** (torch.arange(0, d, 2).float() / d))
        cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]

    def plain_loss(x, y):
        x = model.norm(x).flatten(0, 1)
        return F.cross_entropy(F.linear(x, model.head.weight).float(), y.flatten(), reduction="sum")

    def part(x, w, y):  # one chunk of rows: loss and gradient of the logits
        logits = F.linear(x, w).float()
        top = torch.logsumexp(logits, -1, keepdim=True)
        picked = logits.gather(-1, y[:, None])
        hot = torch.arange(logits.shape[-1], device=logits.device)[None] == y[:, None]
        return (top - picked).sum(), ((logits - top).exp() - hot).to(x.dtype)

    compiled_part = part if "eager" in o else torch.compile(part, dynamic=False)

    class Chunked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            y, total = Chunked.targets, torch.zeros((), device=x.device)
            dx, dw = torch.empty_like(x), torch.zeros(w.shape, dtype=torch.float32, device=w.device)
            for a in range(0, x.shape[0], Chunked.rows):
                rows = slice(a, a + Chunked.rows)
                loss, dlogits = compiled_part(x[rows], w, y[rows])
                total += loss
                torch.mm(dlogits, w, out=dx[rows])
                dw += dlogits.t() @ x[rows]
            ctx.save_for_backward(dx, dw.to(w.dtype))
            return total

        @staticmethod
        def backward(ctx, scale):
            dx, dw = ctx.saved_tensors
            return dx * scale.to(dx.dtype), dw * scale.to(dw.dtype)

    def chunked_loss(x, y):
        x = model.norm(x).flatten(0, 1)
        w = model.head.weight
        if w.dtype != torch.bfloat16:
            w = w.to(torch.bfloat16)
        Chunked.targets, Chunked.rows = y.flatten(), max(64, x.shape[0] // 4)
        with torch.autocast(device, enabled=False):
            return Chunked.apply(x.to(torch.bfloat16), w)

    loss = chunked_loss if "chunked" in o else plain_loss
    how = dict(dynamic=False)
    if "autotune" in o:
        how["mode"] = "max-autotune-no-cudagraphs"
    again = int(o.get("ckpt", 0))
    from torch.utils.checkpoint import checkpoint

    def forward(t, y):
        x = model.tokens(t)
        if not llama:
            x = x + model.places.weight[: t.shape[1]]
        for i, block in enumerate(model.blocks):
            x = checkpoint(block, x, cos, sin, use_reentrant=False) if i < again else block(x, cos, sin)
        return loss(x, y)

    if "eager" in o:
        return model, forward
    if "model" in o:
        return model, torch.compile(forward, **how)
    for block in model.blocks:  # one graph: every block has the same code
        block.compile(fullgraph=True, **how)
    if loss is plain_loss:
        loss = torch.compile(plain_loss, **how)
    return model, forward


class Flat:
    """Weights, gradients and AdamW's states in one buffer each; `numbers` says of what."""
    PIECE = int(os.environ.get("PIECE", 1 << 29))

    def __init__(s, torch, model, numbers, device, copies_first, eager):
        s.torch = torch
        params = sorted(model.parameters(), key=lambda p: p.dim() < 2)
        pad = lambda n: (n + 63) // 64 * 64
        # Decayed parameters in pieces of one size, then vectors: two static shapes, so that stores are 16 bytes wide.
        matrices, vectors = (sum(pad(p.numel()) for p in params if (p.dim() > 1) == m) for m in (True, False))
        s.pieces = -(-matrices // s.PIECE)
        s.piece = -(-matrices // s.pieces // 1024) * 1024
        s.decayed = s.piece * s.pieces
        total = s.decayed + vectors
        low, full = torch.bfloat16, torch.float32
        kind = {"equal": (low, full, full), "lean": (low, low, full), "pure": (low, low, low), "autocast": (full, full, full)}[numbers]
        s.w, s.g = torch.zeros(total, dtype=kind[0], device=device), torch.zeros(total, dtype=kind[1], device=device)
        at = 0
        s.first, s.copies_first = True, copies_first
        for p in params:
            at = max(at, s.decayed) if p.dim() < 2 else at
            view, grad = (f[at:at + p.numel()].view(p.shape) for f in (s.w, s.g))
            view.copy_(p.data)
            p.data = view
            if kind[1] == kind[0]:
                p.grad = grad  # AccumulateGrad adds in place
            else:
                p.register_post_accumulate_grad_hook(lambda p, grad=grad: s.add(p, grad))
            at += pad(p.numel())
        s.hooked = kind[1] != kind[0]
        s.m, s.v = (torch.zeros(total, dtype=kind[2], device=device) for _ in range(2))
        s.master = s.w.float() if numbers in ("equal", "lean") else None
        s.t = torch.zeros((), device=device)
        s.decay = [torch.tensor(x, device=device) for x in (0.1, 0.0)]
        s.update = s.adam if eager else torch.compile(s.adam, dynamic=False)

    def add(s, p, grad):
        if s.first and s.copies_first:
            grad.copy_(p.grad)
        else:
            grad.add_(p.grad)
        p.grad = None

    @staticmethod
    def adam(w, master, g, m, v, scale, t, decay):
        lr, b1, b2, eps = 3e-4, 0.9, 0.95, 1e-8
        g = g.float() * scale
        m_ = b1 * m.float() + (1 - b1) * g
        v_ = b2 * v.float() + (1 - b2) * g * g
        m.copy_(m_)
        v.copy_(v_)
        x = (w if master is None else master).float() * (1 - lr * decay)
        x = x - lr * (m_ / (1 - b1 ** t)) / ((v_ / (1 - b2 ** t)).sqrt() + eps)
        if master is not None:
            master.copy_(x)
        w.copy_(x)

    def begin(s):
        if not (s.hooked and s.copies_first):
            s.g.zero_()
        s.first = True

    def step(s):
        torch = s.torch
        s.t += 1
        pieces = [torch.linalg.vector_norm(s.g[a:a + s.PIECE], dtype=torch.float32) for a in range(0, s.g.numel(), s.PIECE)]
        norm = torch.linalg.vector_norm(torch.stack(pieces))
        scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        parts = [(slice(i * s.piece, (i + 1) * s.piece), s.decay[0]) for i in range(s.pieces)]
        for r, decay in parts + [(slice(s.decayed, s.g.numel()), s.decay[1])]:
            s.update(s.w[r], None if s.master is None else s.master[r], s.g[r], s.m[r], s.v[r], scale, s.t, decay)


class Fused:
    """What most people write: torch.optim.AdamW(fused=True) and clip_grad_norm_."""

    def __init__(s, torch, model, device):
        s.torch, s.params = torch, list(model.parameters())
        groups = [dict(params=[p for p in s.params if p.dim() > 1], weight_decay=0.1), dict(params=[p for p in s.params if p.dim() < 2], weight_decay=0.0)]
        s.optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)

    def begin(s):
        s.optimizer.zero_grad(set_to_none=True)

    def step(s):
        s.torch.nn.utils.clip_grad_norm_(s.params, 1.0, foreach=True)
        s.optimizer.step()


def one(a, c, variant):
    numbers, *options = variant.split("+")
    o = {"numbers": numbers}
    for x in options:
        word = x.rstrip("0123456789")
        o[word] = x[len(word):] or True
    import torch
    imported = time.monotonic() - T0
    device = a.device
    if device == "cuda":
        torch.cuda.init()
    torch.set_float32_matmul_precision("high")
    if "lt" in o:
        torch.backends.cuda.preferred_blas_library("cublaslt")
    import torch._functorch.config, torch._inductor.config
    if "tune" in o:
        torch._inductor.config.coordinate_descent_tuning = True
    if "budget" in o:
        torch._functorch.config.activation_memory_budget = int(o["budget"]) / 100
    from torch.nn.attention import SDPBackend, sdpa_kernel
    import contextlib
    backend = sdpa_kernel([SDPBackend.FLASH_ATTENTION if "flash" in o else SDPBackend.CUDNN_ATTENTION]) if device == "cuda" else contextlib.nullcontext()
    graphs = "graphs" in o
    if graphs:  # all of it on one stream, the one that is captured: gradients are added where their nodes were made
        side = torch.cuda.Stream()
        torch.cuda.set_stream(side)
    model, forward = build(torch, c, device, o)
    optimizer = Fused(torch, model, device) if "fused" in o else Flat(torch, model, numbers, device, not graphs, "eager" in o)
    assert not ("fused" in o and (numbers in ("equal", "lean") or graphs)), "fused has neither masters nor static gradients"
    tokens = c["micro"] * c["accum"] * c["seq"]
    scale = 1.0 / tokens
    most = min(50257, c["vocab"])

    def micro(t, y):
        with torch.autocast(device, torch.bfloat16, enabled=numbers == "autocast", cache_enabled=False):
            loss = forward(t, y) * scale
        loss.backward()
        return loss.detach()

    captured, kept = {}, {}

    def step():
        optimizer.begin()
        if a.same and "x" in kept:
            x = kept["x"]
        else:
            x = kept["x"] = torch.randint(most, (2, c["accum"], c["micro"], c["seq"]), device=device)
        total = torch.zeros((), device=device)
        for i in range(c["accum"]):
            if captured:
                captured["x"].copy_(x[:, i])
                captured["graph"].replay()
                total += captured["loss"]
            else:
                total += micro(x[0, i], x[1, i])
            optimizer.first = False
        optimizer.step()
        return total

    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    with backend:
        losses = [step()]
        first = [losses[0].item(), time.monotonic() - T0][1]
        if graphs:
            captured_x = torch.randint(most, (2, c["micro"], c["seq"]), device=device)
            for _ in range(2):
                micro(captured_x[0], captured_x[1])
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                loss = micro(captured_x[0], captured_x[1])
            captured.update(x=captured_x, graph=graph, loss=loss)
        for _ in range(a.warmup):
            losses.append(step())
        sync()
        begin = time.perf_counter()
        marks = []

        def mark():
            if device == "cuda":
                marks.append(torch.cuda.Event(enable_timing=True))
                marks[-1].record()
            else:
                marks.append(time.perf_counter())
        mark()
        for _ in range(a.steps):
            losses.append(step())
            mark()
        sync()
        whole = (time.perf_counter() - begin) / a.steps
    spans = [(p.elapsed_time(q) / 1e3 if device == "cuda" else q - p) for p, q in zip(marks, marks[1:])]
    values = [x.item() for x in losses]
    assert all(map(math.isfinite, values)), values
    rate = tokens / statistics.median(spans)
    line = dict(model=a.model, variant=variant, tokens_per_sec=round(rate), tokens_per_sec_whole=round(tokens / whole),
                spread=[round(tokens / max(spans)), round(tokens / min(spans))], step_ms=round(1e3 * statistics.median(spans), 2),
                mfu=round(rate * flops_per_token(c) / PEAK, 4), seq=c["seq"], micro=c["micro"], accum=c["accum"], losses=[round(v, 4) for v in values],
                import_s=round(imported, 1), first_step_s=round(first, 1), seconds=round(time.monotonic() - T0, 1), torch=torch.__version__)
    if device == "cuda":
        line.update(card=torch.cuda.get_device_name(), peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1), cudnn=torch.backends.cudnn.version())
    else:
        line["graphs_compiled"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    say(**line)


def timed(torch, f, repeats):
    """Seconds of one call: calls are queued behind a sleeping GPU, so that the host's latency is in none of them."""
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    torch.cuda._sleep(int(2e7))  # about 10 ms
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for m in marks[1:]:
        f()
        m.record()
    torch.cuda.synchronize()
    return statistics.median(p.elapsed_time(q) for p, q in zip(marks, marks[1:])) / 1e3


def attention(a):
    """The shapes of compare_attention_gpu.py, and the grouped heads of 1b and 8b; seven products of the causal half."""
    import torch, torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    shapes = [(16384 // s, 2048 // d, 2048 // d, s, d) for s in (4096, 16384, 1024) for d in (128, 64)] + [(4, 32, 8, 4096, 64), (1, 32, 8, 4096, 128), (32, 12, 12, 1024, 64)]
    for b, h, kv, s, d in shapes:
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            if time.monotonic() - T0 > a.budget:
                return say(attention="out of time")
            rows = torch.randn(b, s, h + 2 * kv, d, device="cuda", dtype=torch.bfloat16)
            q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in rows.split([h, kv, kv], 2))
            dout = torch.randn(b, s, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
            try:
                with sdpa_kernel([backend]):
                    call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=h != kv)
                    out = call()
                    forward = timed(torch, call, 10)
                    backward = timed(torch, lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True), 10)
            except RuntimeError as e:
                say(attention=name, batch=b, heads=h, kv=kv, seq=s, dim=d, error=str(e)[:200])
                continue
            n = b * h * s * s * d
            say(attention=name, batch=b, heads=h, kv=kv, seq=s, dim=d, forward_ms=round(1e3 * forward, 3), backward_ms=round(1e3 * backward, 3),
                forward_tflops=round(2 * n / forward / 1e12), backward_tflops=round(5 * n / backward / 1e12), both_tflops=round(7 * n / (forward + backward) / 1e12))


def gemms(a, c):
    """Products of one micro-batch by torch.mm (cuBLAS): forward, gradient of the input, of the weight."""
    import torch
    d, rows, total, work = c["hidden"] // c["heads"], c["micro"] * c["seq"], 0.0, 0
    layer = [("qkv", (c["heads"] + 2 * c["kv"]) * d, c["hidden"]), ("out", c["hidden"], c["heads"] * d),
             ("up", (2 if c["kind"] == "llama" else 1) * c["inter"], c["hidden"]), ("down", c["hidden"], c["inter"])]
    for name, n, k, count in [x + (c["layers"],) for x in layer] + [("head", c["vocab"], c["hidden"], 1)]:
        x, w, dy = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((rows, k), (n, k), (rows, n)))
        times = [timed(torch, f, 10) for f in (lambda: x @ w.t(), lambda: dy @ w, lambda: dy.t() @ x)]
        total += count * sum(times)
        work += count * 6 * rows * n * k
        say(gemm=name, m=rows, n=n, k=k, count=count, ms=[round(1e3 * t, 3) for t in times], tflops=[round(2 * rows * n * k / t / 1e12) for t in times])
    say(gemms=a.model, micro_batch_ms=round(1e3 * total, 2), tflops=round(work / total / 1e12), tokens_per_sec_of_products_alone=round(rows / total))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=MODELS, default="1b")
    p.add_argument("--variant", help="one, in this process")
    p.add_argument("--variants", help="several, with commas; default: the model's list")
    p.add_argument("--budget", type=float, default=240, help="seconds for everything, imports and compiling included")
    p.add_argument("--each", type=float, default=150, help="seconds for one variant at most")
    for name in ("micro", "accum", "seq", "layers"):
        p.add_argument(f"--{name}", type=int)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--warmup", type=int, default=2, help="beside the first step")
    p.add_argument("--device", default="cuda")
    p.add_argument("--same", action="store_true", help="one batch again and again: variants must learn it alike")
    p.add_argument("--attention", action="store_true")
    p.add_argument("--gemms", action="store_true")
    a = p.parse_args()
    c = dict(MODELS[a.model])
    c.update({k: getattr(a, k) for k in ("micro", "accum", "seq", "layers") if getattr(a, k)})
    if a.attention:
        return attention(a)
    if a.gemms:
        return gemms(a, c)
    if a.variant:
        return one(a, c, a.variant)
    shared = [x for x in sys.argv[1:]]
    for v in (a.variants.split(",") if a.variants else ORDER[a.model]):
        left = a.budget - (time.monotonic() - T0)
        if left < 15:
            say(model=a.model, variant=v, error="not run: out of the budget's time")
            continue
        process = subprocess.Popen([sys.executable, os.path.abspath(__file__), *shared, "--variant", v], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            out, err = process.communicate(timeout=min(left, a.each))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            say(model=a.model, variant=v, error=f"ended after {min(left, a.each):.0f} s")
            continue
        if process.returncode == 0:
            print(out, end="", flush=True)
        else:
            lines = [x for x in err.splitlines() if x.strip()] or ["it said nothing"]
            memory = [x for x in lines if "out of memory" in x.lower()]
            say(model=a.model, variant=v, error=(memory or lines)[-1][:300])
            if os.environ.get("VERBOSE"):
                sys.stderr.write(err)


if __name__ == "__main__":
    main()
