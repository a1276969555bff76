#!/usr/bin/env python3
"""What `ltrain export` writes, read by llama.cpp: its converter makes a GGUF file of a tiny model of each family, and
llama.cpp's own log-probabilities are laid beside those of transformers' model that ltrain imported. Run by
scripts/compare.sh llama-cpp. Exits with 1 at a difference.

Usage: compare_llama_cpp.py LTRAIN LLAMA_CPP_SOURCES [MODEL ...]
"""
import importlib.util
import io
import pathlib
import random
import subprocess
import sys
import tempfile

import llama_cpp
import sentencepiece
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCAB, LONG, SHORT = 512, 48, 16
BOUND = 1e-5  # log-probabilities in fp32; a wrong orientation, norm or rotation is 1e-2 and more
# llama.cpp takes GELU and other activations from a table of 16 bits.
ROUGH = 2e-3
ROUGHLY = ("gpt2", "gemma", "gpt_oss")
# Differences between llama.cpp and transformers that no file changes: sequences end before they count,
SHORTER = {"mistral": "it has no window for Mistral", "qwen2": "it has no window for Qwen2"}
# the model has what llama.cpp takes for granted,
CHANGED = {"gemma2": dict(query_pre_attn_scalar=16),
           "gemma3": dict(query_pre_attn_scalar=16, rope_scaling=None, sliding_window_pattern=6),
           "deepseek_v2": dict(q_lora_rank=12), "qwen3_moe": dict(decoder_sparse_step=1, norm_topk_prob=True),
           "olmoe": dict(num_key_value_heads=4)}
# or it is left out.
NOT_THERE = {"gemma2-plain": "its converter asks for both soft-caps",
             "phi3": "it does not load the vocabulary of a Phi-3 this small", "phi3-longrope": "likewise",
             "deepseek_v2-groups": "it has no groups of experts for DeepSeek-V2"}
SENTENCEPIECE = ("gemma2", "gemma3", "gemma3-plain")
# The converter identifies known vocabularies by the ids of a text. Tiny vocabularies are unknown to it.
CONVERT = ("import sys; sys.path.insert(0, {sources!r}); sys.path.insert(0, {sources!r} + '/gguf-py'); "
           "sys.argv = ['convert', {folder!r}, '--outtype', 'f32', '--outfile', {out!r}]; "
           "from conversion.base import TextModel; TextModel.get_vocab_base_pre = lambda self, tokenizer: 'gpt-2'; "
           "import convert_hf_to_gguf; convert_hf_to_gguf.main()")


def models():
    spec = importlib.util.spec_from_file_location("folders", ROOT / "scripts" / "golden" / "make-hf-folders.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MODELS


def run(*command, cwd=None):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command[:4]))} ...: exit {done.returncode}\n{done.stderr[-2000:]}")


def write_tokenizer(ltrain, folder, name):
    text = ROOT / "README.md"
    if name not in SENTENCEPIECE:
        return run(ltrain, "tokenizer", "train", folder, "--input", text, "--pattern", "gpt2", "--vocab-size", str(VOCAB), "--quiet")
    folder.mkdir()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text.read_text().splitlines()), model_writer=model,
                                             model_type="bpe", vocab_size=VOCAB, byte_fallback=True, minloglevel=2)
    (folder / "tokenizer.model").write_bytes(model.getvalue())


def differences(name, model_type, settings, ltrain, sources, scratch):
    """The greatest difference of a log-probability, and how far apart they are when one tensor is another."""
    settings = dict(settings, vocab_size=VOCAB, **CHANGED.get(name, {}))
    torch.manual_seed(3)
    first = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings)).float().eval()
    with torch.no_grad():
        for p in first.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    source, out, gguf = scratch / name, scratch / f"{name}-out", scratch / f"{name}.gguf"
    write_tokenizer(ltrain, source, name)
    first.save_pretrained(source)
    run(ltrain, "import", source, scratch / f"{name}-checkpoint")
    run(ltrain, "export", scratch / f"{name}-checkpoint", out)
    run(sys.executable, "-c", CONVERT.format(sources=str(sources), folder=str(out), out=str(gguf)))
    length = SHORT if name in SHORTER else LONG
    draw = random.Random(7)
    ids = [draw.randrange(10, VOCAB) for _ in range(length)]
    with torch.no_grad():
        want = torch.log_softmax(first(input_ids=torch.tensor([ids])).logits[0].double(), -1)
    lm = llama_cpp.Llama(str(gguf), n_ctx=64, n_batch=64, logits_all=True, verbose=False, type_k=0, type_v=0,
                         flash_attn=False, n_threads=1, n_threads_batch=1)
    lm.eval(ids)
    got = torch.log_softmax(torch.tensor(lm.scores[:length].copy()).double(), -1)
    shuffled = torch.log_softmax(first(input_ids=torch.tensor([ids[1:] + ids[:1]])).logits[0].double(), -1)
    return (got - want).abs().max().item(), (shuffled - want).abs().max().item()


def main():
    ltrain, sources = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    failed = 0
    print(f"llama-cpp-python {llama_cpp.__version__}, transformers {transformers.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, (model_type, settings) in models().items():
            if sys.argv[3:] and name not in sys.argv[3:]:
                continue
            if name in NOT_THERE:
                print(f"left out {name}: {NOT_THERE[name]}", flush=True)
                continue
            try:
                apart, control = differences(name, model_type, settings, ltrain, sources, pathlib.Path(scratch))
            except (ValueError, SystemExit) as e:
                failed += 1
                print(f"FAIL {name}: {e}", flush=True)
                continue
            ok = apart <= (ROUGH if name.startswith(ROUGHLY) else BOUND) and control > 100 * ROUGH
            failed += not ok
            note = f" (sequences of {SHORT}: {SHORTER[name]})" if name in SHORTER else ""
            print(f"{'ok  ' if ok else 'FAIL'} {name}: log-probabilities at most {apart:.1e} apart; of other tokens "
                  f"{control:.1e}{note}", flush=True)
    print(f"{failed} differences")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
