#!/usr/bin/env python3
"""Registers, spills, stack and shared memory of every CUDA kernel of a build, as ptxas said when it compiled them.

    scripts/gpu/kernel-resources.py build-cuda            compare with the record; any difference fails
    scripts/gpu/kernel-resources.py build-cuda --record   make the build the record of its architectures
    scripts/gpu/kernel-resources.py build-cuda --table    all kernels, the ones that need most first

The record is kernel-resources.json beside this script. It holds for one version of the compiler: with another, nothing
is compared, and that is said (exit code 77).
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

RECORD = pathlib.Path(__file__).resolve().with_name("kernel-resources.json")


def compiler_version(build):
    for line in (build / "CMakeCache.txt").read_text().splitlines():
        if line.startswith("CMAKE_CUDA_COMPILER:"):
            nvcc = line.split("=", 1)[1]
            out = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
            return re.search(r"V(\d+\.\d+\.\d+)", out)[1]
    sys.exit(f"kernel-resources: {build} is no build with CUDA (cmake --preset cuda)")


def readable(names):
    """Demangled, without what every kernel's name has."""
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = []
    for name in out.splitlines():
        name = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("ltrain::cuda::", "")
        depth = 0  # the arguments follow from the name and its types
        for i, c in enumerate(name):
            depth += (c == "<") - (c == ">")
            if c == "(" and depth == 0 and i > 0:
                name = name[:i]
                break
        short.append(name.replace("ltrain::", ""))
    return dict(zip(names, short))


def read_report(path):
    """[(architecture, mangled name, figures)] of one object."""
    kernels, function, arch, stack = [], None, None, {}
    for line in path.read_text().splitlines():
        if m := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            function, arch = m[1], m[2]
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack = {"stack": int(m[1]), "spill_stores": int(m[2]), "spill_loads": int(m[3])}
        elif (m := re.search(r"Used (\d+) registers", line)) and function:
            shared = re.search(r"(\d+) bytes smem", line)
            kernels.append((arch, function, {"registers": int(m[1]), **stack, "shared": int(shared[1]) if shared else 0}))
            function = None
    return kernels


def read_build(build):
    reports = sorted((build / "CMakeFiles").rglob("*_cuda.cu.o.resources"))
    objects = sorted((build / "CMakeFiles").rglob("*_cuda.cu.o"))
    if not objects or len(reports) != len(objects):
        sys.exit(f"kernel-resources: {build} has {len(objects)} compiled CUDA sources and {len(reports)} reports; build it whole")
    kernels = {}
    for report in reports:
        found = read_report(report)
        if not found:
            sys.exit(f"kernel-resources: {report} names no kernel")
        names = readable(sorted({name for _, name, _ in found}))
        for arch, name, figures in found:
            key = f"{report.name.removesuffix('_cuda.cu.o.resources')}: {names[name]}"
            if key in kernels.setdefault(arch, {}):
                sys.exit(f"kernel-resources: two kernels are called {key}")
            kernels[arch][key] = figures
    return kernels


def differences(before, now):
    for arch in sorted(before.keys() | now.keys()):
        old, new = before.get(arch, {}), now.get(arch, {})
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                text = lambda f: "not there" if f is None else ", ".join(f"{k} {v}" for k, v in f.items() if v or k == "registers")
                yield f"  {arch} {key}: {text(old.get(key))} -> {text(new.get(key))}"


def print_table(kernels):
    for arch, all_of in kernels.items():
        print(f"{arch}: {len(all_of)} kernels, {sum(f['spill_stores'] > 0 for f in all_of.values())} with spills")
        print(f"  {'registers':>9}  {'spilled':>7}  {'stack':>5}  {'shared':>6}  kernel")
        for key, f in sorted(all_of.items(), key=lambda kv: (-kv[1]["spill_stores"], -kv[1]["registers"], kv[0])):
            print(f"  {f['registers']:>9}  {f['spill_stores']:>7}  {f['stack']:>5}  {f['shared']:>6}  {key}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    version, kernels = compiler_version(args.build), read_build(args.build)
    if args.table:
        return print_table(kernels)
    if args.record:
        if RECORD.exists():  # architectures that this build leaves out keep their record
            before = json.loads(RECORD.read_text())
            kernels = {**(before["kernels"] if before["nvcc"] == version else {}), **kernels}
        line = lambda item: f"{json.dumps(item[0])}: {json.dumps(item[1])}"
        archs = ",\n".join(f'"{a}": {{\n' + ",\n".join(map(line, sorted(k.items()))) + "\n}" for a, k in sorted(kernels.items()))
        RECORD.write_text(f'{{"nvcc": "{version}", "kernels": {{\n{archs}\n}}}}\n')
        return print(f"kernel-resources: recorded {', '.join(f'{len(k)} kernels for {a}' for a, k in kernels.items())}")
    record = json.loads(RECORD.read_text())
    if record["nvcc"] != version:
        print(f"SKIPPED: kernel resources were recorded with nvcc {record['nvcc']}, this build has {version}")
        sys.exit(77)
    changed = list(differences({a: k for a, k in record["kernels"].items() if a in kernels}, kernels))
    if changed:
        print("kernel-resources: other than recorded; if that is meant: scripts/gpu/kernel-resources.py BUILD --record", file=sys.stderr)
        print("\n".join(changed), file=sys.stderr)
        sys.exit(1)
    print(f"kernel-resources: {', '.join(f'{len(k)} kernels for {a}' for a, k in kernels.items())}, as recorded")


if __name__ == "__main__":
    main()
