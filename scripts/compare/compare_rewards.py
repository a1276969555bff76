#!/usr/bin/env python3
"""Compares scores of reward models with transformers' sequence classifiers, for tiny models of each family, both ways.
Usage: scripts/compare.sh rewards [MODEL ...]      e.g. scripts/compare.sh rewards gpt2 llama
Exits with 1 at a difference."""
# build: ltrain
# packages: transformers torch
import json
import os
import pathlib
import sys
import tempfile

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from compare_transformers import BOUND, Compare, models

END = 256  # the byte tokenizer's end of text
PAIRS = [(f"After {i} come:", f" {i + 1}, {i + 2}.", f" {7 * i}!") for i in range(4)]


class CompareRewards(Compare):
    def metrics(self, folder):
        return [json.loads(line) for line in (self.folder / folder / "metrics.jsonl").open() if "rewards/chosen" in line]

    def scores(self, folder):
        """Mean scores of the chosen and of the rejected texts, one text at a time, by transformers."""
        model, info = AutoModelForSequenceClassification.from_pretrained(self.folder / folder, output_loading_info=True,
                                                                         dtype=torch.float32)
        left = {k: sorted(v)[:3] for k, v in info.items() if v}
        self.check(f"{type(model).__name__} loads it whole", not left, left or "no key missing, none too many")
        texts = [[list((p + t).encode()) + [END] for p, *both in PAIRS for t in both[which:which + 1]] for which in (0, 1)]
        with torch.no_grad():
            return [sum(model.eval()(input_ids=torch.tensor([t])).logits.item() for t in one) / len(one) for one in texts]

    def model(self, name, model_type, settings):
        print(f"{name} (transformers {transformers.__version__})", flush=True)
        torch.manual_seed(3)
        config = AutoConfig.for_model(model_type, **{**settings, "vocab_size": 260, "pad_token_id": 0})
        first = AutoModelForCausalLM.from_config(config).float()
        with torch.no_grad():
            for p in first.parameters():
                p.add_(torch.randn_like(p) * 0.05)
        first.save_pretrained(self.folder / name)
        (self.folder / "pairs.jsonl").write_text(
            "".join(json.dumps({"prompt": p, "chosen": c, "rejected": r}) + "\n" for p, c, r in PAIRS))

        def recipe(begin, output, steps):
            path = self.folder / f"{output}.yaml"
            path.write_text(
                f"name: compare\ntask: reward\nmodel: {{from: {begin}, attn_pdrop: 0, embd_pdrop: 0, resid_pdrop: 0}}\n"
                "parallel: {data: 1}\ndata: {train: [{path: pairs.jsonl}], seq_length: 64, cache: cache, tokenizer: {kind: byte}}\n"
                f"train: {{micro_batch_size: 4, global_batch_size: 4, train_steps: {steps}}}\n"
                f"optimizer: {{lr: 3.0e-3}}\noutput_dir: {output}\nlaunch: {{threads_per_rank: 1}}\n")
            self.run("run", str(path))

        recipe(name, f"{name}-run", 3)
        self.run("export", f"{name}-run", f"{name}-scored")
        theirs = self.scores(f"{name}-scored")
        recipe(f"{name}-scored", f"{name}-again", 1)
        ours = self.metrics(f"{name}-again")[0]
        for which, want in zip(("chosen", "rejected"), theirs):
            got = ours[f"rewards/{which}"]
            self.check(which, abs(got - want) <= BOUND * max(1, abs(want)), f"ltrain {got:.8f}, transformers {want:.8f}")


def main():
    ltrain = pathlib.Path(os.environ.get("LTRAIN", "build/ltrain")).resolve()
    chosen = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        compare = CompareRewards(str(ltrain), pathlib.Path(folder))
        for name, (model_type, settings) in models().items():
            if name in chosen or (not chosen and "num_experts" not in settings and "num_local_experts" not in settings
                                  and "n_routed_experts" not in settings):
                compare.model(name, model_type, settings)
    print(f"{compare.failed} differences")
    sys.exit(compare.failed > 0)


if __name__ == "__main__":
    main()
