#!/usr/bin/env python3
"""Holds `plan.json` against what a run used, over a spread of recipes. Started by scripts/compare-plan.sh.

Arena bytes and bytes on the wire must be equal to the byte; the exit code is 1 when one of them is not.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

import measure

GPT2 = {"1M": (128, 4, 4, 512), "10M": (320, 8, 5, 1024), "30M": (512, 8, 8, 8192), "124M": (768, 12, 12, 50304)}
LLAMA = {"1M": (128, 4, 4, 512), "10M": (320, 8, 5, 1024), "30M": (512, 8, 8, 8192), "110M": (768, 12, 12, 32000)}

# architecture, size, type, ranks, ZeRO, micro-batch, accumulation, sequence, dropout
RECIPES = [
    ("gpt2", "1M", "fp32", 1, 0, 1, 1, 64, 0.0), ("gpt2", "1M", "fp32", 2, 0, 4, 1, 128, 0.0),
    ("gpt2", "1M", "bf16", 1, 0, 8, 2, 65, 0.0), ("gpt2", "1M", "bf16", 2, 1, 2, 4, 200, 0.1),
    ("llama", "1M", "fp32", 1, 0, 8, 1, 256, 0.0), ("llama", "1M", "fp32", 2, 1, 1, 8, 64, 0.0),
    ("llama", "1M", "bf16", 2, 0, 4, 1, 128, 0.0), ("llama", "1M", "bf16", 1, 0, 3, 1, 100, 0.1),
    ("gpt2", "10M", "fp32", 1, 0, 4, 1, 256, 0.0), ("gpt2", "10M", "fp32", 2, 1, 4, 1, 256, 0.1),
    ("gpt2", "10M", "bf16", 1, 0, 8, 1, 128, 0.0), ("gpt2", "10M", "bf16", 2, 0, 2, 2, 256, 0.0),
    ("llama", "10M", "fp32", 1, 0, 2, 4, 256, 0.0), ("llama", "10M", "fp32", 2, 0, 4, 1, 256, 0.0),
    ("llama", "10M", "bf16", 1, 0, 4, 1, 512, 0.0), ("llama", "10M", "bf16", 2, 1, 8, 1, 256, 0.0),
    ("gpt2", "30M", "fp32", 1, 0, 4, 1, 256, 0.0), ("gpt2", "30M", "fp32", 2, 1, 2, 1, 256, 0.0),
    ("gpt2", "30M", "bf16", 2, 1, 4, 1, 256, 0.1), ("llama", "30M", "fp32", 1, 0, 4, 1, 256, 0.0),
    ("llama", "30M", "bf16", 1, 0, 8, 1, 128, 0.0), ("llama", "30M", "fp32", 2, 1, 2, 2, 128, 0.0),
    ("gpt2", "124M", "fp32", 1, 0, 4, 1, 64, 0.0), ("gpt2", "124M", "bf16", 1, 0, 4, 1, 256, 0.0),
    ("gpt2", "124M", "fp32", 2, 1, 2, 1, 128, 0.0), ("llama", "110M", "bf16", 2, 1, 2, 1, 128, 0.0),
]
# The other axes, on two ranks: the same columns, and what `parallel:` says beside zero_stage.
RECIPES += [
    ("llama", "10M", "fp32", 2, 0, 2, 4, 128, 0.0, "pipeline: 2, schedule: 1f1b"),
    ("llama", "10M", "fp32", 2, 0, 2, 4, 128, 0.0, "pipeline: 2, schedule: zb-h1"),
    ("llama", "30M", "fp32", 2, 0, 2, 4, 128, 0.0, "pipeline: 2, schedule: zbv, virtual_pipeline: 2"),
    ("gpt2", "124M", "fp32", 2, 0, 1, 4, 128, 0.0, "pipeline: 2, schedule: 1f1b"),
    ("gpt2", "124M", "fp32", 2, 0, 1, 4, 128, 0.0, "pipeline: 2, schedule: auto"),
    ("gpt2", "30M", "fp32", 2, 0, 2, 2, 128, 0.0, "tensor: 2"),
    ("llama", "30M", "fp32", 2, 0, 2, 2, 256, 0.0, "context: 2"),
    ("llama", "30M", "fp32", 2, 3, 2, 1, 256, 0.0, "data: 2"),
]


def columns(r):
    """The columns of a recipe, with what its `parallel:` says, and its data-parallel ranks."""
    parallel = r[9] if len(r) > 9 else f"data: {r[3]}"
    return (*r[:9], parallel, r[3] if parallel.startswith("data") else 1)


def recipe_text(r):
    architecture, size, dtype, ranks, zero, micro, accumulation, seq, dropout, parallel, data = columns(r)
    hidden, layers, heads, vocab = (GPT2 if architecture == "gpt2" else LLAMA)[size]
    model = [f"architecture: {architecture}", f"vocab_size: {vocab}", f"hidden_size: {hidden}",
             f"num_hidden_layers: {layers}", f"num_attention_heads: {heads}", "max_position_embeddings: 1024"]
    if dropout:
        model += [f"embd_pdrop: {dropout}", f"attn_pdrop: {dropout}", f"resid_pdrop: {dropout}"]
    return (f"name: compare-plan\nmodel: {{{', '.join(model)}}}\nprecision: {dtype}\n"
            f"parallel: {{{parallel}, zero_stage: {zero}}}\n"
            f"data: {{train: [{{path: TOKENS}}], eval: [{{path: TOKENS}}], seq_length: {seq}}}\n"
            f"train: {{micro_batch_size: {micro}, global_batch_size: {micro * accumulation * data}, train_steps: STEPS, "
            f"eval_interval: STEPS, eval_steps: 1}}\n"
            f"checkpoint: {{save_interval: 0, save_at_end: false}}\n")


def name_of(r):
    architecture, size, dtype, ranks, zero, micro, accumulation, seq, dropout, parallel, data = columns(r)
    return (f"{architecture} {size} {dtype}, {ranks} x {2 // ranks} threads, ZeRO {zero}, {micro} x {seq} x {accumulation}"
            + (f", dropout {dropout}" if dropout else "") + (f", {parallel}" if data != ranks else ""))


def run_one(o, scratch, r):
    tokens, recipe, run_dir = (os.path.join(scratch, n) for n in ("tokens", "recipe.yaml", "run"))
    measure.write_tokens(tokens, 20000, 512)
    with open(recipe, "w") as f:
        f.write(recipe_text(r).replace("TOKENS", tokens).replace("STEPS", str(o.warmup + o.steps)))
    # As many threads a rank as divide the two cores among the ranks.
    lines = measure.run_ltrain(o.binary, recipe, run_dir, [f"launch.threads_per_rank={o.cores // r[3]}"],
                               environment={"LTRAIN_PROFILE": o.profile} if o.profile else None)
    with open(os.path.join(run_dir, "plan.json")) as f:
        plan = json.load(f)
    usage = measure.rank_usage(run_dir)
    if sorted(usage) != list(range(r[3])):
        sys.exit(f"{name_of(r)}: usage of ranks {sorted(usage)} in {run_dir}/logs, expected {r[3]}")
    planned = {p["rank"]: p for p in plan["ranks"]}
    steps = o.warmup + o.steps
    out = {"recipe": name_of(r), "ranks": []}
    for rank, u in usage.items():
        p = planned.get(rank, planned[0])
        out["ranks"].append({"rank": rank, "plan_arena": u["plan_arena_bytes"], "arena": u["arena_bytes"],
                             "plan_wire": p["wire_bytes_per_step"] * steps, "wire": u["train_wire_bytes"],
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
    a.add_argument("--out", default=os.path.join(measure.REPOSITORY, "docs", "measurements"))
    a.add_argument("--only", default="", help="recipes whose name contains this")
    a.add_argument("--cores", type=int, default=os.cpu_count())
    a.add_argument("--warmup", type=int, default=2)
    a.add_argument("--steps", type=int, default=5)
    o = a.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for r in RECIPES:
            if o.only in name_of(r):
                results.append(run_one(o, scratch, r))
                print(name_of(r), file=sys.stderr)
    wrong = []
    rows = [["recipe", "arena bytes", "planned - used", "wire bytes a rank", "planned - sent", "peak RSS MiB",
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
        [("scripts/compare-plan.sh " + " ".join(sys.argv[1:])).strip()],
        [("Summary", summary, "Planned over measured, less one, by absolute value."),
         ("By recipe", rows, f"micro-batch x sequence x accumulation. Wire bytes: {o.warmup + o.steps} training steps, counted "
          "in the collectives. Resident memory: VmHWM of the rank that is furthest off. Step time: median of "
          f"{o.steps} steps after {o.warmup}.")], {"results": results, "kendall_tau": tau})
    if wrong:
        sys.exit("planned bytes are not the bytes used: " + "; ".join(wrong))


main()
