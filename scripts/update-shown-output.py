#!/usr/bin/env python3
"""Renews what documents show as the output of commands, in console blocks, after figures of plans changed. `...` stays; a
line that the program does not print any more takes the numbers of the next printed line with the same words. Places that
this cannot renew are named. The test "what documents show on a console is what the program does" checks the result.
Usage: scripts/update-shown-output.py LTRAIN [DOCUMENT...]      (default: README.md and all of docs)"""
import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = "".join(f"line {i} of a text that repeats itself, {i * i} times.\n" for i in range(1500))  # the test's
SMALL = (" train.train_steps=2 train.eval_interval=0 train.micro_batch_size=2 train.global_batch_size=4 schedule.lr_warmup_steps=1 "
         "data.seq_length=16 checkpoint.save_interval=2")  # the test has the same


def fits(shown, printed):
    """A shown line is as printed, where `...` stands for any characters."""
    return re.fullmatch(".*".join(re.escape(part) for part in shown.split("...")), printed) is not None


def words(line):
    """A line without its numbers and the spaces around them."""
    return re.sub(r"[\s\d.,]+", " ", line).strip()


def renewed(shown, printed):
    """The shown lines with the figures of the printed ones; None where a line has no counterpart."""
    if "..." not in shown:
        if len(shown) == len(printed) and all(fits(s, p) for s, p in zip(shown, printed)):
            return shown
        return None if any("..." in line for line in shown) else printed
    out, at = [], 0
    for line in shown:
        if line == "...":
            out.append(line)
            continue
        same = [i for i in range(at, len(printed)) if fits(line, printed[i])]
        alike = [i for i in range(at, len(printed)) if words(line) == words(printed[i])]
        if not (same or alike):
            return None
        at = (same or alike)[0] + 1
        out.append(line if same else printed[at - 1])
    return out


def prepare(folder, binary):
    """A checkout in small: the program, the recipes, and some text and its tokens."""
    with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as f:
        f.write(TEXT)
    for command in ("mkdir -p build runs/quickstart/data tokenizers/small", f"ln -s {binary} build/ltrain",
                    "ln -s build/ltrain ltrain", f"cp -r {ROOT}/recipes .", f"cp -r {ROOT}/tests/golden/records shards",
                    "build/ltrain data build --quiet --input text.txt --output runs/quickstart/data/text --split 90,10 "
                    "--tokenizer byte",
                    f"cp {ROOT}/tests/golden/tokenizers/llama3.tokenizer.json tokenizers/small/tokenizer.json",
                    """echo '{"eos_token": "<|end|>"}' > tokenizers/small/tokenizer_config.json""",
                    f"build/ltrain run recipes/quickstart.yaml {SMALL}"):  # documents name its checkpoint
        subprocess.run(command, shell=True, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def small(command):
    return command + (SMALL if command.startswith("build/ltrain run ") else "")


def run(folder, command):
    environment = dict(os.environ, LTRAIN_PROFILE="none", PATH=folder + ":" + os.environ["PATH"])
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.stdout.decode(errors="replace").splitlines()


def renew(path, folder):
    """Renews a document; the lines of it that could not be."""
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    out, left, inside, at = [], [], False, 0
    while at < len(lines):
        line = lines[at]
        at += 1
        out.append(line)
        if line.startswith("```"):
            inside = line == "```console"
        elif inside and line.startswith("$ "):
            end = next(i for i in range(at, len(lines)) if lines[i].startswith(("$ ", "```")))
            shown = lines[at:end]
            new = renewed(shown, run(folder, small(line[2:])))
            if new is None:
                left.append(at)
            out += shown if new is None else new
            at = end
        elif inside and line:
            run(folder, small(line))
    if out != lines:
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(out))
        print(f"update-shown-output: {os.path.relpath(path, ROOT)} renewed")
    return left


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    binary, documents = os.path.abspath(sys.argv[1]), sys.argv[2:]
    documents = documents or ["README.md", *sorted(os.path.relpath(p, ROOT) for p in glob.glob(f"{ROOT}/docs/*.md"))]
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder, binary)
        for document in documents:
            for number in renew(os.path.join(ROOT, document), folder):
                print(f"update-shown-output: {document}:{number}: shows other lines than the program prints; renew them by hand")


if __name__ == "__main__":
    main()
