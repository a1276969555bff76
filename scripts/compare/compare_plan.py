#!/usr/bin/env python3
"""Plans of 55 recipes against what running them used: arena and wire bytes (exact, or this fails), resident memory,
step time. Run `build/ltrain bench` before on the quiet machine, or step times are priced by a guess.
Writes docs/measurements/compare-plan_CPU_DATE.md. Six minutes.

Arena bytes and bytes on the wire must be equal to the byte; the exit code is 1 when one of them is not.
"""
# build: ltrain
import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile

import measure

GPT2 = {"1M": (128, 4, 4, 512), "10M": (320, 8, 5, 1024), "30M": (512, 8, 8, 8192), "124M": (768, 12, 12, 50304)}
MOE = "moe: {num_experts: 8, top_k: 2, intermediate_size: 192}"
LLAMA = {"1M": (128, 4, 4, 512), "10M": (320, 8, 5, 1024), "30M": (512, 8, 8, 8192), "110M": (768, 12, 12, 32000)}

@dataclasses.dataclass
class Case:
    """A recipe: `parallel` beside zero_stage, `model` and `sections` as YAML text, added to what the shape says."""
    architecture: str
    size: str
    dtype: str
    ranks: int
    zero: int
    micro: int
    accumulation: int
    seq: int
    dropout: float = 0.0
    parallel: str = ""
    model: str = ""
    sections: str = ""
    label: str = ""

    @property
    def axes(self):
        return self.parallel or f"data: {self.ranks}"

    @property
    def data(self):
        """Data-parallel ranks."""
        return self.ranks if self.axes.startswith("data") else 1

    @property
    def name(self):
        return (f"{self.architecture} {self.size} {self.dtype}, {self.ranks} x {max(1, 2 // self.ranks)} threads, ZeRO "
                f"{self.zero}, {self.micro} x {self.seq} x {self.accumulation}"
                + (f", dropout {self.dropout}" if self.dropout else "") + (f", {self.parallel}" if self.parallel else "")
                + (f", {self.label}" if self.label else ""))

    def recipe(self):
        hidden, layers, heads, vocab = (GPT2 if self.architecture == "gpt2" else LLAMA)[self.size]
        model = [f"architecture: {self.architecture}", f"vocab_size: {vocab}", f"hidden_size: {hidden}",
                 f"num_hidden_layers: {layers}", f"num_attention_heads: {heads}", "max_position_embeddings: 1024"]
        if self.model:
            model.append(self.model)
        if self.dropout:
            model += [f"{key}: {self.dropout}" for key in ("embd_pdrop", "attn_pdrop", "resid_pdrop")]
        return (f"name: compare-plan\nmodel: {{{', '.join(model)}}}\nprecision: {self.dtype}\n"
                f"parallel: {{{self.axes}, zero_stage: {self.zero}}}\n"
                f"data: {{train: [{{path: TOKENS}}], eval: [{{path: TOKENS}}], seq_length: {self.seq}}}\n"
                f"train: {{micro_batch_size: {self.micro}, global_batch_size: {self.micro * self.accumulation * self.data}, "
                f"train_steps: STEPS, eval_interval: STEPS, eval_steps: 1}}\n"
                f"checkpoint: {{save_interval: 0, save_at_end: false}}\n" + self.sections)


CASES = [
    Case("gpt2", "1M", "fp32", 1, 0, 1, 1, 64), Case("gpt2", "1M", "fp32", 2, 0, 4, 1, 128),
    Case("gpt2", "1M", "bf16", 1, 0, 8, 2, 65), Case("gpt2", "1M", "bf16", 2, 1, 2, 4, 200, 0.1),
    Case("llama", "1M", "fp32", 1, 0, 8, 1, 256), Case("llama", "1M", "fp32", 2, 1, 1, 8, 64),
    Case("llama", "1M", "bf16", 2, 0, 4, 1, 128), Case("llama", "1M", "bf16", 1, 0, 3, 1, 100, 0.1),
    Case("gpt2", "10M", "fp32", 1, 0, 4, 1, 256), Case("gpt2", "10M", "fp32", 2, 1, 4, 1, 256, 0.1),
    Case("gpt2", "10M", "bf16", 1, 0, 8, 1, 128), Case("gpt2", "10M", "bf16", 2, 0, 2, 2, 256),
    Case("llama", "10M", "fp32", 1, 0, 2, 4, 256), Case("llama", "10M", "fp32", 2, 0, 4, 1, 256),
    Case("llama", "10M", "bf16", 1, 0, 4, 1, 512), Case("llama", "10M", "bf16", 2, 1, 8, 1, 256),
    Case("gpt2", "30M", "fp32", 1, 0, 4, 1, 256), Case("gpt2", "30M", "fp32", 2, 1, 2, 1, 256),
    Case("gpt2", "30M", "bf16", 2, 1, 4, 1, 256, 0.1), Case("llama", "30M", "fp32", 1, 0, 4, 1, 256),
    Case("llama", "30M", "bf16", 1, 0, 8, 1, 128), Case("llama", "30M", "fp32", 2, 1, 2, 2, 128),
    Case("gpt2", "124M", "fp32", 1, 0, 4, 1, 64), Case("gpt2", "124M", "bf16", 1, 0, 4, 1, 256),
    Case("gpt2", "124M", "fp32", 2, 1, 2, 1, 128), Case("llama", "110M", "bf16", 2, 1, 2, 1, 128),
    # The other axes.
    Case("llama", "10M", "fp32", 2, 0, 2, 4, 128, parallel="pipeline: 2, schedule: 1f1b"),
    Case("llama", "10M", "fp32", 2, 0, 2, 4, 128, parallel="pipeline: 2, schedule: zb-h1"),
    Case("llama", "30M", "fp32", 2, 0, 2, 4, 128, parallel="pipeline: 2, schedule: zbv, virtual_pipeline: 2"),
    Case("gpt2", "124M", "fp32", 2, 0, 1, 4, 128, parallel="pipeline: 2, schedule: 1f1b"),
    Case("gpt2", "124M", "fp32", 2, 0, 1, 4, 128, parallel="pipeline: 2, schedule: auto"),
    Case("gpt2", "30M", "fp32", 2, 0, 2, 2, 128, parallel="tensor: 2"),
    Case("llama", "30M", "fp32", 2, 0, 2, 2, 256, parallel="tensor: 2, sequence_parallel: true"),
    Case("llama", "30M", "fp32", 4, 0, 2, 2, 128, parallel="tensor: 4, tensor_mode: 2d"),
    Case("llama", "1M", "fp32", 8, 0, 4, 1, 64, parallel="tensor: 8, tensor_mode: 3d"),
    Case("llama", "30M", "fp32", 2, 0, 2, 2, 256, parallel="context: 2"),
    Case("llama", "30M", "fp32", 2, 3, 2, 1, 256, parallel="data: 2"),
    # MoE: the experts on every rank, cut over both, with a capacity.
    Case("mixtral", "10M", "fp32", 1, 0, 4, 1, 128, model=MOE, label="8 experts"),
    Case("mixtral", "10M", "fp32", 2, 1, 4, 1, 128, model=MOE, label="8 experts"),
    Case("mixtral", "10M", "fp32", 2, 1, 4, 1, 128, parallel="data: 2, expert: 2", model=MOE, label="8 experts"),
    Case("qwen3_moe", "10M", "bf16", 2, 1, 2, 2, 128, parallel="data: 2, expert: 2",
         model=MOE.replace("}", ", capacity_factor: 1.25}"), label="8 experts, capacity"),
    # The same in fp8 (with several micro-batches weights are kept rounded), and with what experts offload.
    Case("mixtral", "10M", "fp8", 1, 0, 4, 1, 128, model=MOE, label="8 experts"),
    Case("mixtral", "10M", "fp8", 2, 1, 2, 2, 128, parallel="data: 2, expert: 2", model=MOE, label="8 experts"),
    Case("mixtral", "1M", "fp8", 2, 0, 2, 2, 128, parallel="tensor: 2", model=MOE, label="8 experts"),
    Case("mixtral", "10M", "fp8", 2, 1, 2, 2, 128, parallel="data: 2, expert: 2",
         model=MOE.replace("}", ", row_budget: 1.5}"), label="8 experts, a budget of rows"),
    Case("mixtral", "10M", "fp32", 2, 1, 2, 2, 128, parallel="data: 2, expert: 2", model=MOE,
         sections="offload: {optimizer: {device: nvme, path: SCRATCH}}\n", label="8 experts, optimizer in files"),
    Case("mixtral", "10M", "fp32", 2, 3, 2, 2, 128, parallel="data: 2, expert: 2", model=MOE,
         sections="offload: {params: {device: nvme, path: SCRATCH}}\n", label="8 experts, weights in files"),
    Case("mixtral", "10M", "fp32", 2, 1, 2, 2, 128, parallel="data: 2, expert: 2", model=MOE,
         sections="offload: {activations: {device: nvme, path: SCRATCH}}\n", label="8 experts, activations in files"),
    Case("mixtral", "10M", "fp8", 2, 1, 2, 2, 128, parallel="data: 2, expert: 2", model=MOE,
         sections="recompute: {granularity: selective, modules: [moe_act]}\n", label="8 experts, activations again"),
    # Products of fp8, what is recomputed, what is offloaded.
    Case("llama", "10M", "fp8", 1, 0, 4, 1, 256), Case("llama", "10M", "fp8", 2, 1, 4, 1, 128),
    Case("llama", "30M", "fp32", 1, 0, 4, 1, 256, sections="recompute: {granularity: full}\n", label="recompute full"),
    Case("llama", "30M", "fp32", 1, 0, 2, 4, 128, sections="offload: {optimizer: {device: nvme, path: SCRATCH}}\n",
         label="optimizer in files"),
    Case("llama", "30M", "fp32", 2, 3, 2, 2, 128, sections="offload: {params: {device: nvme, path: SCRATCH}}\n",
         label="weights in files"),
    Case("llama", "30M", "fp32", 1, 0, 4, 1, 256, sections="offload: {activations: {device: nvme, path: SCRATCH}}\n",
         label="activations in files"),
]


def run_one(o, scratch, case):
    tokens, recipe, run_dir = (os.path.join(scratch, n) for n in ("tokens", "recipe.yaml", "run"))
    measure.write_tokens(tokens, 20000, 512)
    with open(recipe, "w") as f:
        f.write(case.recipe().replace("TOKENS", tokens).replace("SCRATCH", scratch).replace("STEPS", str(o.warmup + o.steps)))
    # The cores are divided among the ranks.
    lines = measure.run_ltrain(o.binary, recipe, run_dir, [f"launch.threads_per_rank={max(1, o.cores // case.ranks)}"],
                               environment={"LTRAIN_PROFILE": o.profile} if o.profile else None)
    with open(os.path.join(run_dir, "plan.json")) as f:
        plan = json.load(f)
    usage = measure.rank_usage(run_dir)
    if sorted(usage) != list(range(case.ranks)):
        sys.exit(f"{case.name}: usage of ranks {sorted(usage)} in {run_dir}/logs, expected {case.ranks}")
    planned = {p["rank"]: p for p in plan["ranks"]}
    steps = o.warmup + o.steps
    out = {"recipe": case.name, "ranks": []}
    # Bytes between experts depend on the routing. They are listed separately, beside the plan for even routing.
    for rank, u in usage.items():
        p = planned.get(rank, planned[0])
        plan_routed = sum(c["wire_bytes"] for c in p["communication"] if c["group"] == "ep") * steps
        sent_routed = u["train_wire_bytes_by_group"].get("ep", 0)
        out["ranks"].append({"rank": rank, "plan_arena": u["plan_arena_bytes"], "arena": u["arena_bytes"],
                             "plan_wire": p["wire_bytes_per_step"] * steps - plan_routed,
                             "wire": u["train_wire_bytes"] - sent_routed,
                             "plan_routed_wire": plan_routed, "routed_wire": sent_routed,
                             "plan_total": u["plan_total_bytes"], "peak_rss": u["peak_rss_bytes"]})
    out["plan_step_ms"] = 1e3 * max(p["step_seconds"] for p in plan["ranks"])
    out["step_ms"] = measure.spread([line["step_time_ms"] for line in lines[o.warmup:]])
    return out


def kendall_tau(pairs):
    score = count = 0
    for i, (a, b) in enumerate(pairs):
        for c, d in pairs[:i]:
            score += (1 if (a - c) * (b - d) > 0 else -1)
            count += 1
    return score / count if count else 1.0


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--profile", help="machine profile of `ltrain bench`; default: where ltrain looks")
    a.add_argument("--out", default=measure.PAGES)
    a.add_argument("--only", default="", help="recipes whose name contains this")
    a.add_argument("--cores", type=int, default=os.cpu_count())
    a.add_argument("--warmup", type=int, default=2)
    a.add_argument("--steps", type=int, default=5)
    o = a.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            if o.only in case.name:
                results.append(run_one(o, scratch, case))
                print(case.name, file=sys.stderr)
    wrong = []
    rows = [["recipe", "arena bytes", "planned - used", "wire bytes a rank", "planned - sent", "expert bytes, sent over planned (even)", "peak RSS MiB",
             "planned total MiB", "RSS off", "step ms", "planned ms", "off"]]
    for r in results:
        arena = sum(abs(x["plan_arena"] - x["arena"]) for x in r["ranks"])
        wire = sum(abs(x["plan_wire"] - x["wire"]) for x in r["ranks"])
        if arena or wire:
            wrong.append(r["recipe"])
        worst = max(r["ranks"], key=lambda x: abs(x["peak_rss"] / x["plan_total"] - 1))
        r["rss_off"] = worst["plan_total"] / worst["peak_rss"] - 1 if worst["peak_rss"] else 0
        r["time_off"] = r["plan_step_ms"] / r["step_ms"]["median"] - 1
        rows.append([r["recipe"], f"{r['ranks'][0]['arena']:,}", str(arena), f"{r['ranks'][0]['wire']:,}", str(wire),
                     f"{r['ranks'][0]['routed_wire'] / r['ranks'][0]['plan_routed_wire']:.3f}" if r["ranks"][0]["plan_routed_wire"] else "",
                     f"{worst['peak_rss'] / 2**20:.1f}", f"{worst['plan_total'] / 2**20:.1f}", f"{100 * r['rss_off']:+.1f} %",
                     f"{r['step_ms']['median']:.1f}", f"{r['plan_step_ms']:.1f}", f"{100 * r['time_off']:+.1f} %"])
    time_off = [abs(r["time_off"]) for r in results]
    rss_off = [abs(r["rss_off"]) for r in results]
    tau = kendall_tau([(r["plan_step_ms"], r["step_ms"]["median"]) for r in results])
    summary = [["", "mean", "worst"], ["arena bytes", "exact" if not wrong else "NOT EXACT", ""],
               ["resident memory", f"{100 * statistics.mean(rss_off):.1f} %", f"{100 * max(rss_off):.1f} %"],
               ["step time", f"{100 * statistics.mean(time_off):.1f} %", f"{100 * max(time_off):.1f} %"],
               ["order of step times (Kendall's tau)", f"{tau:.3f}", ""]]
    measure.write_report(
        o.out, "compare-plan", f"Plans and measurements of {len(results)} recipes",
        [("scripts/compare.sh plan " + " ".join(sys.argv[1:])).strip()],
        [("Summary", summary, "Planned over measured, less one, by absolute value."),
         ("By recipe", rows, f"micro-batch x sequence x accumulation. Wire bytes: {o.warmup + o.steps} training steps, counted "
          "in the collectives, without what experts exchange, which depends on where tokens go and stands apart. Resident memory: VmHWM of the rank that is furthest off. Step time: median of "
          f"{o.steps} steps after {o.warmup}.")], {"results": results, "kendall_tau": tau})
    if wrong:
        sys.exit("planned bytes are not the bytes used: " + "; ".join(wrong))


main()
