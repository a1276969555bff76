#!/usr/bin/env python3
"""Compares ltrain with the newest transformers of PyPI: loads, losses and exports of tiny models of each family.
Makes a virtual environment (some GB with torch) in build/venv-transformers, or takes the Python of PYTHON.
Usage: scripts/compare.sh transformers [MODEL ...]      e.g. scripts/compare.sh transformers gpt2 mixtral
Exits with 1 at a difference."""
# build: ltrain
# packages: transformers torch
import importlib.util
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEQ, SAMPLES = 64, 12  # the models' longest sequence, which an imported one is evaluated with
BOUND = 1e-5  # relative, of losses in fp32


def models():
    sys.path.insert(0, str(ROOT / "scripts" / "golden"))
    spec = importlib.util.spec_from_file_location("folders", ROOT / "scripts" / "golden" / "make-hf-folders.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MODELS


def write_tokens(prefix, tokens):
    """One document in Megatron's format: u16 tokens."""
    pathlib.Path(f"{prefix}.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2)
    index += struct.pack("<i", len(tokens)) + struct.pack("<q", 0) + struct.pack("<2q", 0, 1)
    pathlib.Path(f"{prefix}.idx").write_bytes(index)


def loss_of(model, tokens):
    """Mean cross-entropy of SAMPLES sequences, each SEQ tokens on from the one before; no loss for balance."""
    x = torch.tensor([tokens[i * SEQ:(i + 1) * SEQ + 1] for i in range(SAMPLES)])
    with torch.no_grad():
        logits = model(input_ids=x[:, :-1]).logits.double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()).item(), logits


class Compare:
    def __init__(self, ltrain, folder):
        self.ltrain, self.folder, self.failed = ltrain, folder, 0

    def run(self, *arguments):
        done = subprocess.run([self.ltrain, *arguments], cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"ltrain {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
        return done.stdout

    def eval(self, what):
        return json.loads(self.run("eval", what, "--data", "tokens", "--micro-batch", "4", "--json"))["sets"][0]["loss"]

    def check(self, what, ok, text):
        self.failed += not ok
        print(f"  {'ok  ' if ok else 'FAIL'} {what}: {text}", flush=True)

    def close(self, what, ours, theirs):
        off = abs(ours / theirs - 1)
        self.check(what, off <= BOUND, f"ltrain {ours:.8f}, transformers {theirs:.8f}, apart {off:.1e}")

    def load(self, folder):
        model, info = AutoModelForCausalLM.from_pretrained(self.folder / folder, output_loading_info=True,
                                                           dtype=torch.float32)
        left = {k: sorted(v)[:3] for k, v in info.items() if v}
        self.check("transformers loads it whole", not left, left or "no key missing, none too many")
        return model.eval()

    def model(self, name, model_type, settings):
        print(f"{name} (transformers {transformers.__version__})", flush=True)
        torch.manual_seed(3)
        config = AutoConfig.for_model(model_type, **settings)
        first = AutoModelForCausalLM.from_config(config).float().eval()
        with torch.no_grad():  # norms and biases begin with 1 and 0, which would hide one in the place of another
            for p in first.parameters():
                p.add_(torch.randn_like(p) * 0.02)
        first.save_pretrained(self.folder / name)
        draw = random.Random(7)
        tokens = [draw.randrange(settings["vocab_size"]) for _ in range(SEQ * SAMPLES + 1)]
        write_tokens(self.folder / "tokens", tokens)
        want, logits = loss_of(first, tokens)
        self.run("import", name, f"{name}-checkpoint")
        self.run("export", f"{name}-checkpoint", f"{name}-out")
        back = self.load(f"{name}-out")
        same = torch.equal(loss_of(back, tokens)[1], logits)
        self.check("in and out", same, "logits are the same bits" if same else "logits differ")
        recipe = self.folder / f"{name}.yaml"
        recipe.write_text(
            f"name: compare\nmodel: {{from: {name}, attn_pdrop: 0, embd_pdrop: 0, resid_pdrop: 0}}\n"
            f"parallel: {{tensor: 2, data: 1}}\ndata: {{train: [{{path: tokens}}], seq_length: {SEQ}}}\n"
            "train: {micro_batch_size: 4, global_batch_size: 4, train_steps: 3}\n"
            f"optimizer: {{lr: 1.0e-3}}\noutput_dir: {name}-run\nlaunch: {{threads_per_rank: 1}}\n")
        self.run("run", str(recipe))
        lines = [json.loads(line) for line in (self.folder / f"{name}-run" / "metrics.jsonl").open()]
        self.run("export", f"{name}-run", f"{name}-trained")
        trained = self.load(f"{name}-trained")
        after = loss_of(trained, tokens)[0]
        self.close("loss after three steps on two ranks", self.eval(f"{name}-run"), after)
        self.check("the steps changed it", after < want and len([x for x in lines if "lm_loss" in x]) == 3,
                   f"{want:.4f} to {after:.4f}")
        self.close("loss of the folder", self.eval(f"{name}-checkpoint"), want)


def main():
    ltrain = pathlib.Path(os.environ.get("LTRAIN", "build/ltrain")).resolve()
    chosen = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        compare = Compare(str(ltrain), pathlib.Path(folder))
        for name, (model_type, settings) in models().items():
            if not chosen or name in chosen:
                compare.model(name, model_type, settings)
    print(f"{compare.failed} differences")
    sys.exit(compare.failed > 0)


if __name__ == "__main__":
    main()
