#!/usr/bin/env python3
"""Fine-tuning of a model of SmolLM2-135M's shape on this CPU: ltrain beside TRL with PEFT, whole and with LoRA.
Writes docs/measurements/compare-fine-tuning_CPU_DATE.md. Half an hour on a quiet machine."""
# build: ltrain
# packages: torch==2.15.0 transformers==5.24.0 peft==0.21.2 trl==1.16.0
import json
import os
import subprocess
import sys
import tempfile

import measure

PEER = os.path.join(measure.REPOSITORY, "scripts", "compare", "programs", "trl_steps.py")
SHAPE = dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
             num_key_value_heads=3, max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=True,
             rope_parameters=dict(rope_type="default", rope_theta=1e5))


def write_model(folder, layers):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**dict(SHAPE, num_hidden_layers=layers))).save_pretrained(folder)


def peer(o, model, tokens, dtype, rank, steps):
    command = [sys.executable, PEER, "--model", model, "--tokens", tokens, "--dtype", dtype, "--rank", str(rank),
               "--steps", str(steps), "--threads", str(o.threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS=str(o.threads)))
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def ours(o, scratch, model, prefix, dtype, rank, steps):
    run_dir, recipe = os.path.join(scratch, "run"), os.path.join(scratch, "r.yaml")
    with open(recipe, "w") as f:
        json.dump({"model": {"from": model}, "data": {"train": [{"path": prefix}], "seq_length": o.seq},
                   "train": {"micro_batch_size": o.batch, "global_batch_size": o.batch, "train_steps": steps},
                   "parallel": {"data": 1}, "precision": dtype, "launch": {"threads_per_rank": o.threads},
                   "device": "cpu", "optimizer": {"min_lr": 0}, "lora": {"r": rank, "alpha": 2 * rank} if rank else {"r": 0}}, f)
    lines = measure.run_ltrain(o.binary, recipe, run_dir, measure.FEW_STEPS)
    return lines, measure.rank_usage(run_dir)[0]


def main():
    a = measure.options(__doc__, rounds=3, warmup=1, steps=4)
    a.add_argument("--batch", type=int, default=4)
    a.add_argument("--seq", type=int, default=256)
    a.add_argument("--rank", type=int, default=16)
    a.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"], help="fewer: for a look")
    a.add_argument("--threads", type=int, default=2)
    o = a.parse_args()
    o.binary = os.path.abspath(o.binary)
    rows = [["what", "type", "ltrain tokens/s", "TRL + PEFT tokens/s", "ratio", "ltrain MiB", "TRL + PEFT MiB",
             "first losses apart"]]
    record = []
    with tempfile.TemporaryDirectory() as scratch:
        model, prefix = os.path.join(scratch, "model"), os.path.join(scratch, "data", "tokens")
        write_model(model, o.layers)
        measure.write_tokens(prefix, o.batch * o.seq + 1, SHAPE["vocab_size"])
        ids = measure.read_tokens(prefix)
        tokens = os.path.join(scratch, "tokens.json")
        with open(tokens, "w") as f:  # each row is a sample of ltrain's, whose last target is the next one's first token
            json.dump([ids[i * o.seq:(i + 1) * o.seq + 1] for i in range(o.batch)], f)
        for name, rank in (("LoRA", o.rank), ("whole", 0)):
            for dtype in ("fp32", "bf16"):
                our_ms, their_ms, memory, losses = [], [], [[], []], None
                for _ in range(o.rounds):
                    lines, usage = ours(o, scratch, model, prefix, dtype, rank, o.warmup + o.steps)
                    theirs = peer(o, model, tokens, dtype, rank, o.warmup + o.steps)
                    our_ms += [line["step_time_ms"] for line in lines[o.warmup:]]
                    their_ms += theirs["step_ms"][o.warmup:]
                    memory[0].append(usage["peak_rss_bytes"] / 2**20)
                    memory[1].append(theirs["peak_mib"])
                    losses = lines[0]["lm_loss"], theirs["loss"][0]
                apart = abs(losses[0] - losses[1]) / losses[1]
                if apart > (1e-3 if dtype == "fp32" else 5e-3):
                    sys.exit(f"{name} {dtype}: first losses {losses} are {apart:.1e} apart: no timing is worth printing")
                s = [measure.spread(v) for v in (our_ms, their_ms)]
                rate = [o.batch * o.seq * 1e3 / v["median"] for v in s]
                rows.append([name, dtype, f"{rate[0]:.0f}", f"{rate[1]:.0f}", f"**{rate[0] / rate[1]:.2f}**",
                             f"{max(memory[0]):.0f}", f"{max(memory[1]):.0f}", f"{apart:.1e}"])
                record.append({"what": name, "dtype": dtype, "ltrain_ms": s[0], "trl_ms": s[1], "losses": losses,
                               "memory_mib": memory})
                print(rows[-1], file=sys.stderr)
    measure.write_report(
        o.out, "compare-fine-tuning", f"Fine-tuning of SmolLM2-135M's shape: ltrain, and TRL with PEFT, {o.threads} threads",
        ["scripts/compare.sh fine-tuning " + " ".join(sys.argv[1:])],
        [("Steps", rows, f"Medians of {o.rounds} alternating runs of {o.steps} steps after {o.warmup} of warm-up, "
          f"{o.batch} sequences of {o.seq} tokens each, AdamW. LoRA: rank {o.rank} on all linear layers. ltrain: "
          "step_time_ms of `ltrain run`; TRL: from on_step_begin to on_step_end. Memory: the process's peak. bf16: ltrain "
          "keeps fp32 master weights of what trains, TRL loads the model in bf16.")],
        {"results": record, "shape": dict(SHAPE, num_hidden_layers=o.layers)})


if __name__ == "__main__":
    main()
