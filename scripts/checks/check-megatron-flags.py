#!/usr/bin/env python3
"""Compares the table of `ltrain plan --flags` with a checkout of Megatron-LM: each flag must be there, and each default.

Usage: scripts/checks/check-megatron-flags.py MEGATRON_TREE [LTRAIN]. Reads the tree's source, and imports none of it: flags
are those of add_argument, and of the fields of its configuration classes, which its ArgumentGroupFactory makes flags of.
"""
import ast
import pathlib
import re
import subprocess
import sys


def declared(tree):
    """Flag to default as Python writes it; None where there is none."""
    flags = {}
    files = list((tree / "megatron/training").rglob("*.py"))
    files += [tree / "megatron/core/transformer/transformer_config.py", tree / "megatron/core/model_parallel_config.py"]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                default = next((ast.unparse(k.value) for k in node.keywords if k.arg == "default"), None)
                for a in node.args:
                    if isinstance(a, ast.Constant) and str(a.value).startswith("--"):
                        flags[a.value] = default
            elif isinstance(node, ast.ClassDef):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        default = ast.unparse(field.value) if field.value else None
                        names = re.search(r"'arg_names': \[(.*?)\]", default or "")
                        inner = re.match(r"field\(default=([^,]+),", default or "")
                        default = inner.group(1) if inner else default
                        for name in re.findall(r"'(.*?)'", names.group(1)) if names else []:
                            flags[name] = default
                        flags.setdefault("--" + field.target.id.replace("_", "-"), default)
    return flags


def same(ours, theirs):
    try:
        value = eval(theirs, {"__builtins__": {}})  # a literal, or arithmetic such as 2 ** 32
    except Exception:
        return False
    if isinstance(value, list):
        value = value[0]
    if value is None:
        return ours in ("none", "uniform", "1", "1.0", "0", "0.0")  # Megatron-LM does this without the flag
    try:
        return float(value) == float(ours)
    except (TypeError, ValueError):
        return str(value) == ours


def main():
    flags = declared(pathlib.Path(sys.argv[1]))
    ltrain = sys.argv[2] if len(sys.argv) > 2 else "build/ltrain"
    text = subprocess.run([ltrain, "plan", "--flags"], check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^\| `(--[^`]+)` \| .*? \| (.*?) \| .*\|$", text, re.M)
    rows += [(flag, "") for flag in re.findall(r"--[a-z0-9-]+", text.split("Passed over", 1)[1])]
    wrong = [f"{flag}: not in the tree" for flag, _ in rows if flag not in flags]
    wrong += [f"{flag}: default {ours} in the table, {flags[flag]} in the tree"
              for flag, ours in rows if ours and flag in flags and not same(ours, flags[flag] or "None")]
    print("\n".join(wrong) or f"{len(rows)} flags, {sum(bool(d) for _, d in rows)} defaults: as in {sys.argv[1]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
