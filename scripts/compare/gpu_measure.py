"""The measurements of scripts/gpu-check.sh: steps of models on one card, with ops, clocks and memory, a JSON line each."""
import json
import os
import statistics
import subprocess
import threading
import time

LLAMA = """name: {name}
device: cuda
precision: bf16
parallel: {{data: 1}}
model: {{architecture: llama, vocab_size: 128256, hidden_size: {hidden}, intermediate_size: {inter}, num_hidden_layers: {layers},
  num_attention_heads: {heads}, num_key_value_heads: 8, max_position_embeddings: {seq}, tie_word_embeddings: {tied}}}
data: {{train: [{{path: {tokens}}}], seq_length: {seq}}}
train: {{micro_batch_size: {micro}, global_batch_size: {batch}, train_steps: 12}}
optimizer: {{lr: 3.0e-4}}
profile: {{step_start: 12, step_end: 13}}
"""
GPT2 = """name: gpt2-124m
device: cuda
precision: bf16
parallel: {{data: 1}}
model: {{architecture: gpt2, vocab_size: 50304, hidden_size: {hidden}, num_hidden_layers: {layers}, num_attention_heads: {heads},
  max_position_embeddings: {seq}, tie_word_embeddings: true}}
data: {{train: [{{path: {tokens}}}], seq_length: {seq}}}
train: {{micro_batch_size: {micro}, global_batch_size: {batch}, train_steps: 12}}
optimizer: {{lr: 3.0e-4}}
profile: {{step_start: 12, step_end: 13}}
"""
MODELS = {
    "1b": (LLAMA, dict(name="llama-1b", hidden=2048, inter=8192, layers=16, heads=32, seq=4096, tied="true", micro=4, batch=8)),
    "8b": (LLAMA, dict(name="llama-8b", hidden=4096, inter=14336, layers=32, heads=32, seq=4096, tied="false", micro=1, batch=4)),
    "gpt2": (GPT2, dict(hidden=768, layers=12, heads=12, seq=1024, micro=32, batch=32)),
    "gpt2-xl": (GPT2, dict(hidden=1600, layers=48, heads=25, seq=1024, micro=8, batch=32)),
}
# States in bf16: what 80 GB hold. Two tensors of a layer are computed again.
LEAN = ["optimizer.grad_dtype=bf16", "optimizer.state_dtype=bf16", "recompute.granularity=selective",
        "recompute.modules=[layernorm,mlp_act]"]
QUIET = ["train.eval_interval=0", "train.log_interval=1", "schedule.lr_warmup_steps=1", "checkpoint.save_interval=0",
         "checkpoint.save_at_end=false", "checkpoint.resume=never", "launch.distributed_timeout_minutes=1"]
MOE = ["model.architecture=mixtral", "model.num_hidden_layers=8", "model.intermediate_size=4096"]
# In the order of their worth: what the time does not reach is listed as not run.
STEPS = [
    ("1B, defaults", "1b", []),
    ("1B, FP8", "1b", ["precision=fp8"]),
    ("GPT-2 124M", "gpt2", []),
    # An op's time has the loading of its kernels and of its library in it.
    ("1B, ops of the first step", "1b", ["profile.step_start=1", "profile.step_end=2"]),
    ("1B, without CUDA graphs", "1b", ["cuda_graphs=off"]),
    ("1B, native attention", "1b", ["attention_backend=own"]),
    ("1B, not deterministic", "1b", ["deterministic=false"]),
    ("1B, measured matmuls", "1b", ["LTRAIN_MATMUL_ALGORITHMS=measured"]),
    ("1B, FP8, measured matmuls", "1b", ["precision=fp8", "LTRAIN_MATMUL_ALGORITHMS=measured"]),
    ("1B, FP8, without CUDA graphs", "1b", ["precision=fp8", "cuda_graphs=off"]),
    ("GPT-2 124M, without CUDA graphs", "gpt2", ["cuda_graphs=off"]),
    ("1B, native attention, without CUDA graphs", "1b", ["attention_backend=own", "cuda_graphs=off"]),
    ("8B, bf16 states", "8b", LEAN),
    ("8B, bf16 states, FP8", "8b", LEAN + ["precision=fp8"]),
    ("MoE, 8 experts, top-2", "1b", MOE + ["model.moe.num_experts=8", "model.moe.top_k=2", "model.moe.intermediate_size=4096"]),
    ("MoE, 64 experts, top-8", "1b", MOE + ["model.moe.num_experts=64", "model.moe.top_k=8", "model.moe.intermediate_size=1024"]),
    ("dense model beside the MoE", "1b", ["model.num_hidden_layers=8", "model.intermediate_size=8192"]),
    ("8B, LoRA", "8b", ["lora.r=16", "lora.alpha=32"]),
    ("8B, LoRA on NF4", "8b", ["lora.r=16", "lora.alpha=32", "lora.base=nf4"]),
    ("1B, states offloaded", "1b", ["offload.optimizer.device=cpu"]),
    ("1B, states updated by the host", "1b", ["offload.optimizer.device=cpu", "offload.optimizer.update=cpu"]),
    ("GPT-2 1.5B", "gpt2-xl", []),
]
TORCH = [("1b", "equal"), ("gpt2", "equal"), ("1b", "pure"), ("8b", "pure")]
PEFT = ["compiled", "eager"]


class Watch:
    """Clock, power and memory of the card while something runs, by nvidia-smi every 100 ms."""

    FIELDS = ["clocks.sm", "power.draw", "memory.used", "temperature.gpu"]

    def __init__(self, card):
        self.card = card

    def __enter__(self):
        self.rows = []
        self.process = subprocess.Popen(["nvidia-smi", "--query-gpu=" + ",".join(self.FIELDS), "--format=csv,noheader,nounits",
                                         "-lms", "100"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()
        return self

    def read(self):
        for line in self.process.stdout:
            try:
                self.rows.append((time.monotonic(), [float(x) for x in line.split(",")]))
            except ValueError:
                pass

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.thread.join(timeout=2)

    def summary(self, seconds):
        """Medians of the last `seconds`: the timed steps."""
        ends = self.rows[-1][0] if self.rows else 0
        rows = [values for at, values in self.rows if at > ends - seconds]
        busy = [r for r in rows if r[1] > 200] or rows
        if not busy:
            return {}
        column = lambda i: [r[i] for r in busy]
        return {"sm_mhz": statistics.median(column(0)), "watts": statistics.median(column(1)),
                "used_mib": max(column(2)), "celsius": max(column(3))}


def ops_of(folder):
    """Calls and milliseconds by op of the traced step."""
    found = {}
    traces = os.path.join(folder, "traces")
    for name in sorted(os.listdir(traces)) if os.path.isdir(traces) else []:
        with open(os.path.join(traces, name), encoding="utf-8") as f:
            for e in json.load(f)["traceEvents"]:
                if e["ph"] == "X" and e.get("cat") != "host":
                    op = found.setdefault(e["name"], {"calls": 0, "ms": 0.0})
                    op["calls"] += 1
                    op["ms"] = round(op["ms"] + e["dur"] / 1e3, 4)
    return found


def record(folder, name, overrides, watch, seconds):
    """One line of OUT/steps.jsonl. The first four steps and the traced one count neither for rates nor for the median."""
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as lines:
        steps = [x for x in map(json.loads, lines) if "step_time_ms" in x]
    timed = steps[4:11]
    line = {"name": name, "card": watch.card, "overrides": overrides, "seconds": round(seconds, 1),
            "step_ms": round(statistics.median(x["step_time_ms"] for x in timed), 2),
            "steps_ms": [round(x["step_time_ms"], 2) for x in steps],
            "tokens_per_sec": round(statistics.median(x["tokens_per_sec"] for x in timed)),
            "losses": [round(x["lm_loss"], 5) for x in steps], **watch.summary(sum(x["step_time_ms"] for x in timed) / 1e3)}
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as f:
        line["planned_ms"] = round(1e3 * json.load(f)["step_seconds"], 2)
    with open(os.path.join(folder, "logs", "usage-00000.json"), encoding="utf-8") as f:
        usage = json.load(f)
    line["memory"] = {k: usage[k] for k in ("arena_bytes", "plan_arena_bytes", "device_bytes", "plan_total_bytes",
                                            "peak_rss_bytes", "plan_host_bytes")}
    line["start"] = usage["start"]
    line["ops"] = ops_of(folder)
    return line


def recipe_of(checks, model):
    text, values = MODELS[model]
    path = os.path.join(checks.work, f"{model}.yaml")
    with open(path, "w", encoding="utf-8") as to:
        to.write(text.format(tokens=checks.random, **values))
    return path


def write_line(checks, line):
    with open(os.path.join(checks.out, "steps.jsonl"), "a", encoding="utf-8") as to:
        to.write(json.dumps(line) + "\n")


def step_check(checks, check_type, binary, name, model, settings):
    overrides = [s for s in settings if not s.startswith("LTRAIN_")]
    variables = dict(s.split("=", 1) for s in settings if s.startswith("LTRAIN_"))
    variables["LTRAIN_CACHE_DIR"] = os.path.join(checks.work, "cache")

    def run(log, limit, environment):
        folder = os.path.join(checks.work, name.replace(" ", "-").replace(",", ""))
        command = [binary, "run", recipe_of(checks, model), *QUIET, f"output_dir={folder}", *overrides]
        if checks.planning:
            return checks.command(command, log, limit) and None
        with Watch(checks.card) as watch:
            try:
                seconds = checks.command(command, log, limit, **variables, **environment)
            except RuntimeError as e:
                if "exit code 78" not in str(e):
                    raise
                with open(log, "a", encoding="utf-8") as to:
                    to.write("SKIPPED: this card has too little memory\n")
                return None
        line = record(folder, name, settings, watch, seconds)
        write_line(checks, line)
        print(f"gpu-check:   {name}: {line['step_ms']} ms a step ({line['planned_ms']} planned), {line['tokens_per_sec']} tokens/s, "
              f"{line.get('sm_mhz')} MHz, {line.get('watts')} W", flush=True)
        return None
    return check_type(name, 60, run)


def peer_check(checks, check_type, name, command):
    """One variant of a peer in a process of its own, which prints a JSON line."""
    def run(log, limit, _):
        if checks.planning:
            return checks.command(command, log, limit) and None
        with Watch(checks.card) as watch:
            checks.command(command, log, limit)
        with open(log, encoding="utf-8") as text:
            line = json.loads([x for x in text.read().splitlines() if x.startswith("{")][-1])
        line.update(name=name, card=checks.card, **watch.summary(8 * line["step_ms"] / 1e3))
        write_line(checks, line)
        print(f"gpu-check:   {line['name']}: {line['step_ms']} ms a step, {line['tokens_per_sec']} tokens/s", flush=True)
        return None
    return check_type(name, 75, run, "torch")


def torch_check(checks, check_type, python, peers, model, variant):
    """PyTorch; compiled code is kept between variants."""
    return peer_check(checks, check_type, f"PyTorch {model}, {variant}",
                      [python, os.path.join(peers, "programs", "torch_llama.py"), "--model", model, "--variant", variant, "--steps", "8"])


def peft_check(checks, check_type, python, peers, variant):
    """Adapters on 8B by transformers and PEFT."""
    return peer_check(checks, check_type, f"PEFT 8b, {variant}",
                      [python, os.path.join(peers, "programs", "torch_lora.py"), "--variant", variant])
