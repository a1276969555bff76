"""What scripts/compare.sh torch-gpu compares: models, variants, and how their figures are defined."""
import csv
import io
import json

# Dense bf16 TFLOP/s of NVIDIA's datasheets, by what the driver calls the card.
PEAKS = {"H200": 989, "H100": 989, "GH200": 989, "A100": 312, "B200": 2250}

CASES = {
    # The shape of Llama-3.2-1B; 32k tokens a step.
    "llama-1b": dict(architecture="llama", vocab=128256, hidden=2048, ffn=8192, layers=16, heads=32, kv_heads=8,
                     tied=True, seq=4096, micro=4, accumulation=2),
    "gpt2-1.5b": dict(architecture="gpt2", vocab=50304, hidden=1600, ffn=6400, layers=48, heads=25, kv_heads=25,
                      tied=True, seq=1024, micro=8, accumulation=4),
    # The shape of Llama-3.1-8B, with fp32 AdamW on one card: gradients of bf16, and two tensors of a layer computed again.
    "llama-8b": dict(architecture="llama", vocab=128256, hidden=4096, ffn=14336, layers=32, heads=32, kv_heads=8,
                     tied=False, seq=4096, micro=1, accumulation=4,
                     overrides=["optimizer.grad_dtype=bf16", "recompute.granularity=selective",
                                "recompute.modules=[layernorm,mlp_act]"]),
}

# The likely fastest first: what the budget does not reach is listed as not run.
TORCH_VARIANTS = [dict(mode=mode, weights=weights, attention=attention, loss=loss)
                  for mode in ("compiled", "graphs", "eager")
                  for weights in ("autocast", "bf16")
                  for loss in ("plain", "chunked")
                  for attention in ("cudnn", "flash")]
# Not deterministic: as PyTorch's are, and then attention's backward may be cuDNN's.
LTRAIN_VARIANTS = [dict(cuda_graphs="off", matmul="heuristic", deterministic="true"),
                   dict(cuda_graphs="on", matmul="heuristic", deterministic="true"),
                   dict(cuda_graphs="on", matmul="measured", deterministic="true"),
                   dict(cuda_graphs="on", matmul="measured", deterministic="false")]


def text_of(v):
    if "cuda_graphs" in v:
        return f"ltrain, cuda_graphs: {v['cuda_graphs']}, matmul algorithms {v['matmul']}, deterministic: {v['deterministic']}"
    weights = "bf16 autocast" if v["weights"] == "autocast" else "bf16 parameters and AdamW states"
    return f"PyTorch {v['mode']}, {weights}, {v['attention']} attention, {v['loss']} cross-entropy"


def matmul_parameters(c):
    """Parameters that matmuls use, the head's included."""
    head_dim = c["hidden"] // c["heads"]
    attention = c["hidden"] * head_dim * (2 * c["heads"] + 2 * c["kv_heads"])
    mlp = (3 if c["architecture"] == "llama" else 2) * c["hidden"] * c["ffn"]
    return c["layers"] * (attention + mlp) + c["vocab"] * c["hidden"]


def flops_per_token(c):
    """Of a training step, causal attention counted: 6 N + 6 L d s."""
    return 6 * matmul_parameters(c) + 6 * c["layers"] * c["hidden"] * c["seq"]


def tokens_per_step(c):
    return c["seq"] * c["micro"] * c["accumulation"]


def peak_of(card):
    """The datasheet's FLOP/s of a card; None where it is not known."""
    for name in sorted(PEAKS, key=len, reverse=True):
        if name in card:
            return PEAKS[name] * 1e12
    return None


def recipe_overrides(c):
    shape = dict(architecture=c["architecture"], vocab_size=c["vocab"], hidden_size=c["hidden"],
                 num_hidden_layers=c["layers"], num_attention_heads=c["heads"], max_position_embeddings=c["seq"],
                 tie_word_embeddings="true" if c["tied"] else "false")
    if c["architecture"] == "llama":
        shape.update(intermediate_size=c["ffn"], num_key_value_heads=c["kv_heads"])
    return [f"model.{k}={v}" for k, v in shape.items()] + [
        "device=cuda", "precision=bf16", "parallel.data=1", "parallel.zero_stage=0", f"data.seq_length={c['seq']}",
        f"train.micro_batch_size={c['micro']}", f"train.global_batch_size={c['micro'] * c['accumulation']}",
        "train.log_interval=1"] + c.get("overrides", [])


def idle_share(intervals):
    """Share of [first begin, last end] in which none of the (begin, end) is open."""
    if not intervals:
        return None
    intervals = sorted(intervals)
    busy, reach = 0, intervals[0][0]
    for begin, end in intervals:
        if end > reach:
            busy += end - max(begin, reach)
            reach = end
    return 1 - busy / (reach - intervals[0][0]) if reach > intervals[0][0] else None


def nsys_intervals(text):
    """(begin, end) in nanoseconds of `nsys stats --report cuda_gpu_trace --format csv`."""
    lines = text.splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith("Start (ns)")), None)
    if at is None:
        raise ValueError("no table of nsys: no line begins with `Start (ns)`")
    rows = csv.DictReader(io.StringIO("\n".join(lines[at:])))
    return [(int(r["Start (ns)"]), int(r["Start (ns)"]) + int(r["Duration (ns)"])) for r in rows if r["Start (ns)"]]


def trace_intervals(path):
    """(begin, end) in microseconds of a trace of ltrain's, of all its streams but the host's."""
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    host = {e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == "host"}
    return [(e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] not in host]


def op_seconds(path):
    """Seconds by name of a trace of ltrain's."""
    with open(path) as f:
        seconds = {}
        for e in json.load(f)["traceEvents"]:
            if e["ph"] == "X":
                seconds[e["name"]] = seconds.get(e["name"], 0) + e["dur"] / 1e6
    return seconds
