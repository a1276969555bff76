#!/usr/bin/env python3
"""Compares `ltrain eval --choices` with EleutherAI's lm-evaluation-harness of PyPI: log-likelihoods and accuracies of a
tiny model, which ltrain trains and exports. Makes a virtual environment (some GB with torch) in build/venv-lm-eval, or
takes the Python of PYTHON.
Usage: scripts/compare.sh lm-eval
Exits with 1 at a difference."""
# build: ltrain
# packages: lm_eval[hf]
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = os.environ["TQDM_DISABLE"] = "1"

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEQ, QUESTIONS = 64, 200
BOUND = 1e-4  # log-likelihoods of tens, in fp32 with another order of sums
WORDS = "the a cat dog house tree runs sees likes and or not über été 東京 42 x_1 don't".split()
RECIPE = """name: lm-eval
output_dir: run
model: {architecture: llama, vocab_size: %d, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4, max_position_embeddings: 64}
parallel: {data: 1}
data: {train: [{path: text}], seq_length: 64, tokenizer: {kind: huggingface, path: tokenizer}}
train: {micro_batch_size: 8, global_batch_size: 8, train_steps: 60}
optimizer: {lr: 3.0e-3}
launch: {threads_per_rank: 1}
"""


def sentence(draw, words):
    return " ".join(draw.choice(WORDS) for _ in range(words))


def questions(draw):
    """Of the text's words; some empty, some longer than a sequence."""
    for i in range(QUESTIONS):
        length = 0 if i % 20 == 7 else 90 if i % 20 == 11 else draw.randrange(1, 12)
        choices = [sentence(draw, draw.randrange(1, 6)) for _ in range(draw.randrange(2, 5))]
        yield {"question": sentence(draw, length), "choices": choices, "answer": draw.randrange(len(choices))}


def harness(folder, file, bos):
    """The harness's version and accuracies, the log-likelihoods of each question, and how many were truncated."""
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM
    task = ConfigurableTask(config={
        "task": "questions", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "question", "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")]})
    model = HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=1, max_length=SEQ, add_bos_token=bos)
    done = lm_eval.evaluate(lm=model, task_dict={"questions": task}, bootstrap_iters=0)
    samples = sorted(done["samples"]["questions"], key=lambda s: s["doc_id"])
    # The harness truncates here: the last token of a choice is not read.
    asked = {}
    for s in done["samples"]["questions"]:
        asked[s["doc_id"]] = max(sum(map(len, model._encode_pair(*a))) if a[0] else 0 for a in s["arguments"]) > SEQ + 1
    return lm_eval.__version__, done["results"]["questions"], [[r[0] for r in s["filtered_resps"]] for s in samples], sum(
        asked.values())


def main():
    ltrain = pathlib.Path(os.environ.get("LTRAIN", "build/ltrain")).resolve()
    draw = random.Random(5)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.environ["HF_HOME"] = str(folder / "cache")

        def run(*arguments):
            done = subprocess.run([ltrain, *arguments], cwd=folder, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"compare-lm-eval: ltrain {' '.join(arguments)} ended with {done.returncode}\n{done.stderr}")
            return done.stdout

        tokenizer = json.loads((ROOT / "tests/golden/tokenizers/llama3.tokenizer.json").read_text())
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / "tokenizer" / "tokenizer_config.json").write_text(
            json.dumps({"bos_token": "<s>", "eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}))
        (folder / "text.txt").write_text("\n".join(sentence(draw, 12) for _ in range(3000)))
        ids = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
        (folder / "recipe.yaml").write_text(RECIPE % ids)
        with (folder / "questions.jsonl").open("w") as out:
            for q in questions(draw):
                out.write(json.dumps(q) + "\n")
        run("data", "build", "--tokenizer", "tokenizer", "--input", "text.txt", "--output", "text")
        run("run", "recipe.yaml")
        run("export", "run", "exported", "--dtype", "fp32")
        failed = 0
        # The run's documents begin with no token; the folder's tokenizer puts one before a text.
        for what, bos in (("run", False), ("exported", None)):
            found = json.loads(run("eval", what, "--choices", "questions.jsonl", "--scores", "scores.jsonl", "--json"))
            scores = [json.loads(line)["log_likelihoods"] for line in (folder / "scores.jsonl").open()]
            failed += compare(what, found["questions"][0], scores,
                              *harness(folder / "exported", folder / "questions.jsonl", bos))
    sys.exit(failed > 0)


def compare(what, ours, scores, version, theirs, wanted, long):
    failed = 0

    def check(name, ok, text):
        nonlocal failed
        failed += not ok
        print(f"  {'ok  ' if ok else 'FAIL'} {name}: {text}", flush=True)

    print(f"{what}: lm-evaluation-harness {version}, {QUESTIONS} questions")
    apart = [abs(a - b) for s, w in zip(scores, wanted) for a, b in zip(s, w)]
    same = len(scores) == len(wanted) == QUESTIONS and all(len(s) == len(w) for s, w in zip(scores, wanted))
    check("log-likelihoods", same and max(apart) <= BOUND, f"{len(apart)} choices, at most {max(apart):.1e} apart")
    for mine, name in (("accuracy", "acc"), ("accuracy_by_length", "acc_norm")):
        check(mine, abs(ours[mine] - theirs[f"{name},none"]) < 1e-9, f"{ours[mine]:.4f} and {theirs[f'{name},none']:.4f}")
    check("questions that had to be shortened", 0 < ours["shortened"] == long, ours["shortened"])
    check("the accuracies differ", ours["accuracy"] != ours["accuracy_by_length"], "which one is which is seen")
    return failed


if __name__ == "__main__":
    main()
