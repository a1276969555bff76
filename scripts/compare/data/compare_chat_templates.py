#!/usr/bin/env python3
"""Compares rendered chat templates with jinja2 as transformers configures it, and their tokens with tokenizers.

Usage: scripts/compare.sh chat-templates [--binary FILE] [--templates FOLDER...] [--show N]
Without --templates: the templates in the wheels of trl and axolotl, which pip downloads to build/chat-templates. Each
is rendered with 30 conversations: text and generation spans must be equal byte for byte, and a template that raises in
jinja2 must raise here. Then the ids of each conversation that ltrain takes must be those of Hugging Face's tokenizers,
and its mask the tokens of the generation blocks but for white space behind the stop token. Last, built-in templates
must render what the stock templates render that they stand for. Exits with 1 at a difference.
"""

# build: chat_templates
# packages: jinja2 tokenizers
import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile

import chat_oracle
import tokenizers

WHEELS = ["trl==1.16.0", "axolotl==0.19.0"]
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
BUILD = os.path.join(ROOT, "build")
GOLDEN = os.path.join(ROOT, "tests", "golden", "tokenizers")
TOKENIZERS = ["llama3", "qwen2", "gpt2", "llama2"]
SPECIAL = re.compile(r"<\|?[A-Za-z_0-9/]+\|?>|\[/?[A-Z_]+\]|<｜[^｜]*｜>")
# Built-in template, end of the path of a stock one, special tokens, conversations.
STOCK = [
    ("chatml", "axolotl/utils/chat_templates/templates/chatml.jinja", {}, (0, 1, 2, 3, 4, 5, 7, 11)),
    ("llama3", "trl/chat_templates/llama3.jinja", {"bos_token": "<|begin_of_text|>"}, (0, 1, 2, 3, 4, 5, 7)),
    ("gemma", "trl/chat_templates/gemma.jinja", {"bos_token": "<bos>"}, (0, 1, 2, 5, 7)),
    ("gemma", "trl/chat_templates/gemma3.jinja", {"bos_token": "<bos>"}, (0, 1, 2, 3, 4, 5, 7)),
    ("phi", "axolotl/utils/chat_templates/templates/phi_35.jinja", {}, (0, 1, 2, 3, 4, 5, 7)),
    ("mistral", "axolotl/utils/chat_templates/templates/mistral_v2v3.jinja", {}, (0, 1, 2, 5, 7)),
]


def download(folder):
    os.makedirs(folder, exist_ok=True)
    for wheel in WHEELS:
        name = wheel.partition("==")[0]
        if not glob.glob(f"{folder}/{name}-*.whl"):
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "--quiet",
                    "--no-deps",
                    "--only-binary=:all:",
                    "-d",
                    folder,
                    wheel,
                ],
                check=True,
            )
    for wheel in glob.glob(f"{folder}/*.whl"):
        with zipfile.ZipFile(wheel) as z:
            for name in z.namelist():
                if name.endswith(".jinja"):
                    z.extract(name, folder)


class Binary:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, **request):
        self.process.stdin.write(json.dumps({"date": chat_oracle.DATE, **request}).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def render(self, template, variables):
        reply = self.send(template=template, variables=variables)
        if "text" in reply:
            inside = [0] * len(reply["text"].encode())
            for begin, end in reply["generated"]:
                inside[begin:end] = [1] * (end - begin)
            reply["generated"] = inside
        return reply


def compare_texts(o, binary, sources, sets, env):
    counts = dict(templates=0, renderings=0, texts=0, errors=0, generated=0, differences=0)
    for source, f in sources.items():
        counts["templates"] += 1
        compiled = env.from_string(source)
        for i, variables in enumerate(sets):
            wanted, got = chat_oracle.rendered(compiled, variables), binary.render(source, variables)
            counts["renderings"] += 1
            counts["texts"] += "text" in wanted
            counts["errors"] += "error" in wanted
            counts["generated"] += any(wanted.get("generated", []))
            same = wanted == {k: got.get(k) for k in ("text", "generated")} if "text" in wanted else "error" in got
            if same:
                continue
            counts["differences"] += 1
            if counts["differences"] <= o.show:
                print(f"{f}, conversation {i}:\n  jinja2: {str(wanted)[:600]}\n  ltrain: {str(got)[:600]}")
    print("texts:", ", ".join(f"{v} {k}" for k, v in counts.items()))
    return counts["differences"]


def with_specials(name, specials, folder):
    """A file of a golden tokenizer with more special tokens."""
    with open(f"{GOLDEN}/{name}.tokenizer.json", encoding="utf-8") as f:
        made = json.load(f)
    known = {t["content"] for t in made["added_tokens"]}
    next_id = max([*made["model"]["vocab"].values(), *(t["id"] for t in made["added_tokens"])]) + 1
    for content in sorted(specials - known):
        made["added_tokens"].append(
            dict(
                id=next_id,
                content=content,
                single_word=False,
                lstrip=False,
                rstrip=False,
                normalized=False,
                special=True,
            )
        )
        next_id += 1
    path = f"{folder}/{name}.json"
    with open(path, "w", encoding="utf-8") as f:
        json.dump(made, f)
    return path, {t["content"] for t in made["added_tokens"] if t["special"]}


def typed(value, specials):
    """Whether data has the text of a special token."""
    text = json.dumps(value, ensure_ascii=False)
    return any(json.dumps(s, ensure_ascii=False)[1:-1] in text for s in specials)


def compare_tokens(o, binary, sources, sets, env):
    counts = dict(rows=0, refused=0, by_blocks=0, tokens=0, trained=0, split=0, differences=0)
    specials = {s for source in sources for s in SPECIAL.findall(source)} | {"</s>", "<s>", "<pad>", "<unk>"}
    with tempfile.TemporaryDirectory() as folder:
        for name in TOKENIZERS:
            path, all_specials = with_specials(name, specials, folder)
            theirs = tokenizers.Tokenizer.from_file(path)
            for source, f in sources.items():
                compiled = env.from_string(source)
                for i, variables in enumerate(sets):
                    if variables["add_generation_prompt"] or typed(
                        [variables["messages"], variables["tools"]], all_specials
                    ):
                        continue
                    row = {k: v for k, v in variables.items() if k in ("messages", "tools")}
                    row["chat_template_kwargs"] = {
                        k: v for k, v in variables.items() if k not in ("messages", "tools", "add_generation_prompt")
                    }
                    del row["chat_template_kwargs"]["bos_token"], row["chat_template_kwargs"]["eos_token"]
                    got = binary.send(
                        template=source, row=row, tokenizer=path, specials={"bos_token": "<s>", "eos_token": "</s>"}
                    )
                    counts["rows"] += 1
                    if "error" in got:
                        counts["refused"] += 1
                        o.reasons[re.sub(r"\d+|\"[^\"]*\"", "*", got["error"])[:110]] = (
                            o.reasons.get(re.sub(r"\d+|\"[^\"]*\"", "*", got["error"])[:110], 0) + 1
                        )
                        continue
                    counts["tokens"] += len(got["ids"])
                    counts["trained"] += sum(got["trained"])
                    counts["split"] += got["split"]
                    counts["by_blocks"] += got["blocks"]
                    encoding = theirs.encode(got["text"], add_special_tokens=False)
                    problem = "" if encoding.ids == got["ids"] else "ids"
                    if got["blocks"] and not problem:
                        problem = mask_problem(got, encoding, compiled, variables)
                    if problem:
                        counts["differences"] += 1
                        if counts["differences"] <= o.show:
                            print(f"{f}, conversation {i}, {name}: {problem}: {got['text'][:300]!r}")
    print("tokens:", ", ".join(f"{v} {k}" for k, v in counts.items()))
    for reason, count in sorted(o.reasons.items(), key=lambda x: -x[1])[:12]:
        print(f"  refused {count}: {reason}")
    return counts["differences"]


def mask_problem(got, encoding, compiled, variables):
    """What is wrong with the mask of a template with generation blocks: "" if nothing."""
    reference = chat_oracle.rendered(compiled, variables)
    if reference.get("text") != got["text"]:
        return ""  # ltrain dropped keys with null, as transformers does: another text
    inside, starts = reference["generated"], [0]
    for c in got["text"]:
        starts.append(starts[-1] + len(c.encode()))
    for k, ((begin, end), trained) in enumerate(zip(encoding.offsets, got["trained"])):
        part = inside[starts[begin] : starts[end]]
        if trained and not all(part):
            return f"token {k} is trained outside of a generation block"
        if not trained and part and all(part) and got["text"][begin:end].strip():
            return f"token {k} of a generation block is not trained"
    return ""


def compare_builtins(o, binary, sources, sets, env):
    compared = differences = 0
    for builtin, path, specials, which in STOCK:
        for source, f in sources.items():
            if not f.endswith(path):
                continue
            for i in which:
                variables = {**sets[i], **specials}
                wanted, got = chat_oracle.rendered(env.from_string(source), variables), binary.render(
                    {"builtin": builtin}, variables
                )
                compared += 1
                if wanted.get("text") != got.get("text") or "text" not in wanted:
                    differences += 1
                    print(
                        f"built-in {builtin} and {f}, conversation {i}:\n  {wanted.get('text', wanted)!r}\n  {got.get('text', got)!r}"
                    )
    print(f"built-in templates: {compared} texts, {differences} differences")
    return differences + (compared == 0)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--binary", default=os.path.join(BUILD, "chat_templates"))
    a.add_argument("--templates", nargs="*")
    a.add_argument("--show", type=int, default=5, help="differences to print")
    o = a.parse_args()
    o.reasons = {}
    if not o.templates:
        o.templates = [os.path.join(BUILD, "chat-templates")]
        download(o.templates[0])
    files = sorted(f for folder in o.templates for f in glob.glob(f"{folder}/**/*.jinja", recursive=True))
    sources = {}
    for f in files:
        with open(f, encoding="utf-8") as file:
            sources.setdefault(file.read(), f)
    if not sources:
        print("no templates")
        return 1
    common = (o, Binary(o.binary), sources, chat_oracle.conversations(), chat_oracle.environment())
    return int(sum(step(*common) for step in (compare_texts, compare_tokens, compare_builtins)) > 0)


if __name__ == "__main__":
    sys.exit(main())
