#!/usr/bin/env python3
"""Loads adapters that ltrain exports with vLLM's loader, on a CPU: it refuses those of which the export says so, and no
others, and the changes of weights that it reads are those of the merged model.
Usage: scripts/compare.sh vllm
Exits with 1 at a difference."""
# build: ltrain
# packages: vllm
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import vllm
import vllm.lora.lora_model
from safetensors import safe_open
from vllm.config.lora import LoRAConfig
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

HERE = pathlib.Path(__file__).resolve().parents[2]
BASE = HERE / "tests" / "golden" / "trl"  # a tiny Llama
MODULES = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"}
CASES = {
    "plain": "lora: {r: 4, alpha: 8}",
    "rsLoRA": "lora: {r: 4, alpha: 8, use_rslora: true}",
    "own ranks": "lora: {r: 4, alpha: 8, rank_pattern: {q_proj: 2}, alpha_pattern: {v_proj: 4, 'model.layers.0.*': 6}}",
    "rank 24": "lora: {r: 24, alpha: 8}",
    "DoRA": "lora: {r: 4, alpha: 8, dora: true}",
    "PiSSA": "lora: {r: 4, alpha: 8, init: pissa}",
    "output layer": "lora: {r: 4, alpha: 8, modules_to_save: [lm_head]}",
}


vllm.lora.lora_model.PIN_MEMORY = False  # there is no GPU to copy to


def weights(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name).double() for name in file.keys()}


def read(folder, helper):
    return LoRAModel.from_local_checkpoint(str(folder), MODULES, helper, lora_model_id=1, device="cpu", dtype=torch.float32)


def run(ltrain, folder, *arguments):
    done = subprocess.run([ltrain, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main():
    ltrain = os.environ.get("LTRAIN_BINARY", str(HERE / "build" / "ltrain"))
    failed = 0
    print(f"vLLM {vllm.__version__}")
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        (folder / "texts.jsonl").write_text("".join(json.dumps({"prompt": f"{i} + 1?", "completion": f" {i + 1}"}) + "\n"
                                                    for i in range(20)))
        for number, (name, lora) in enumerate(CASES.items()):
            (folder / "lora.yaml").write_text(
                f"task: sft\nmodel: {{from: {BASE}}}\n{lora}\noptimizer: {{lr: 0.02}}\n"
                "data: {train: [{path: texts.jsonl}], seq_length: 64, cache: cache, tokenizer: {kind: byte}}\n"
                f"train: {{global_batch_size: 2, train_steps: 5}}\noutput_dir: run{number}\n")
            run(ltrain, folder, "run", "lora.yaml")
            said = run(ltrain, folder, "export", f"run{number}", f"adapter{number}", "--adapter")
            run(ltrain, folder, "export", f"run{number}", f"merged{number}", "--merge")
            adapter = folder / f"adapter{number}"
            helper = PEFTHelper.from_local_dir(str(adapter), None)
            needed = int(said.split("--max-lora-rank ")[1].split()[0]) if "--max-lora-rank " in said else 16
            refusal = ""
            try:
                helper.validate_legal(LoRAConfig(max_lora_rank=needed))
            except ValueError as error:
                refusal = str(error)
            same = bool(refusal) == ("vLLM 0.33 refuses" in said)
            text = f"refused, and the export says so: {refusal}" if refusal else "accepted"
            if not refusal and needed > 16:
                try:
                    helper.validate_legal(LoRAConfig(max_lora_rank=16))
                    same = False
                except ValueError:
                    text += f" with --max-lora-rank {needed}, and refused without"
            if not refusal:
                loaded, before, after = read(adapter, helper), weights(BASE), weights(folder / f"merged{number}")
                with safe_open(adapter / "adapter_model.safetensors", "pt") as file:
                    stored = {key.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] for key in file.keys()}
                same = same and set(loaded.loras) == stored
                most = 0.0
                for module, layer in loaded.loras.items():
                    change = layer.lora_b.double() @ layer.lora_a.double() * layer.scaling
                    most = max(most, float((after[module + ".weight"] - before[module + ".weight"] - change).abs().max()))
                same = same and most < 1e-6
                text += f", {len(stored)} modules, changes of weights within {most:.1e} of the merged ones"
            failed += not same
            print(f"{'ok  ' if same else 'FAIL'} {name}: {text}{'' if same else chr(10) + said}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
