#!/usr/bin/env python3
"""What the machine code of the memory-bound kernels of a bf16 step does for each 16 bytes that it moves.

    scripts/gpu/kernel-code.py build-cuda            compare with the page, and with the bound; any difference fails
    scripts/gpu/kernel-code.py build-cuda --write    write the page
    scripts/gpu/kernel-code.py build-cuda --allow-missing ...   of a build whose objects are not all there

The page is docs/measurements/kernel-code.md, for sm_90a. It holds for one version of the compiler: with another, only
the bound is checked, and that is said (exit code 77).
"""
import argparse
import difflib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/measurements/kernel-code.md"
spec = importlib.util.spec_from_file_location("kernel_resources", ROOT / "scripts/gpu/kernel-resources.py")
resources = importlib.util.module_from_spec(spec)
spec.loader.exec_module(resources)

# An H200 moves 4.8 TB/s: 16 bytes for each of a warp's 32 lanes every 14 ns on each of 132 SMs, which issue four
# instructions a cycle at 1.755 GHz in that time: 99. Three quarters of it leave room for what waits.
SLOTS, MOST_A_PACK = 99, 74

# The kernels that a step of llama and of gpt2 in bf16 or fp8 with fp32 gradients launches, by object.
WATCHED = {
    "activation": ["gated_forward<bf16, 8, Swiglu<bf16> >", "gated_backward<bf16, 8, Swiglu<bf16> >", "gelu_forward<bf16, 8>",
                   "gelu_backward<bf16, 8>", "partial_column_sums<8, float, GeluGradients<Gelu<bf16>, bf16, 8> >"],
    "cross_entropy": ["cross_entropy_kept<bf16, false>", "cross_entropy<8, float, bf16, false>", "stats<8, float, false>",
                      "sharded<8, float, bf16, false>"],
    "embedding": ["lookup<bf16, 8, false>", "lookup<bf16, 8, true>", "add_runs<bf16, 8>"],
    "norm": ["norm_forward_row<bf16, 1, false, false>", "norm_forward_row<bf16, 1, true, false>",
             "norm_forward_row<bf16, 4, false, false>", "norm_forward_fp8_row<bf16, 1, false, false>",
             "norm_backward_rows<bf16, 1, false>", "norm_backward_rows<bf16, 1, true>", "norm_backward_rows<bf16, 2, false>",
             "residual_add_row<bf16, false>"],
    "quantize": ["quantize<E4m3, bf16, 16, true>", "quantize_tiles_of_packs<E4m3, bf16, false, true>",
                 "quantize_tiles_of_packs<E4m3, bf16, true, true>", "turn_packs"],
    "rope": ["rope_packs<bf16, false>", "rope_packs<bf16, true>"],
    "tensor_ops": ["add<bf16, 8>", "add_vector<bf16, 8>", "cast<bf16, float, 8>", "sum_squares<float>",
                   "partial_column_sums<8, float, Elements<bf16, 8> >"],
    "swiglu_fp8": ["swiglu_forward_fp8<bf16, 16>", "swiglu_forward_fp8_tiles<bf16>",
                   "swiglu_backward_fp8_tiles<E5m2, bf16>"],
    "adamw": ["update<float, bf16, float, float, true>"],
}
# Loads of a tile that these kernels have in flight before they need the first: all of it.
IN_FLIGHT = {"quantize_tiles_of_packs": 4, "swiglu_forward_fp8_tiles": 8, "swiglu_backward_fp8_tiles": 12}
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]*)(.*?);")


def functions(text):
    """{mangled name: [(address, opcode, operands)]} of what cuobjdump prints."""
    found, code = {}, None
    for line in text.splitlines():
        if m := re.search(r"Function : (\S+)", line):
            code = found.setdefault(m[1], [])
        elif code is not None and (m := INSTRUCTION.match(line)):
            if m[2] != "NOP":
                code.append((int(m[1], 16), m[2], m[3]))
    return found


def loops(code):
    """[(first, last)] of the addresses of loops."""
    found = []
    for address, opcode, operands in code:
        if opcode.startswith("BRA") and (m := re.search(r"0x([0-9a-f]+)\s*$", operands.strip())):
            if (target := int(m[1], 16)) < address:
                found.append((target, address))
    return found


def innermost(spans):
    """Those that have no other in them."""
    return [a for a in spans if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in spans)]


def registers_read(opcode, operands):
    """Numbers of the registers whose values an instruction needs."""
    parts = operands.split(",") if opcode.startswith(("ST", "RED")) else operands.split(",")[1:]
    read = set()
    for i, part in enumerate(parts):
        for name, wide in re.findall(r"\bR(\d+)((?:\.64)?)", part):
            width = 2 if wide else 1
            if opcode.startswith("ST") and i > 0:  # registers with the value to store
                width = 4 if ".128" in opcode else 2 if ".64" in opcode else 1
            read.update(range(int(name), int(name) + width))
    return read


def most_in_flight(code):
    """Most 16-byte loads that are in flight when one of them is waited for, along the code: loads until a value is used,
    copies into shared memory until their group is waited for."""
    loads, groups, open_group, most = [], [], 0, 0
    for _, opcode, operands in code:
        if re.match(r"LDGSTS\b.*\.128", opcode):
            open_group += 1
        elif opcode == "LDGDEPBAR":
            groups, open_group = [*groups, open_group], 0
        elif opcode.startswith("DEPBAR") and (m := re.search(r"SB0, 0x([0-9a-f]+)", operands)):
            most = max(most, len(loads) + sum(groups))
            groups = groups[max(0, len(groups) - int(m[1], 16)):]
        read = registers_read(opcode, operands)
        needed = [i for i, base in enumerate(loads) if read & set(range(base, base + 4))]
        if needed:  # loads come back in the order in which they were issued
            most = max(most, len(loads) + sum(groups))
            loads = loads[needed[-1] + 1:]
        if re.match(r"LDG\b.*\.128", opcode):
            loads.append(int(re.match(r"\s*R(\d+)", operands)[1]))
    return most


def figures(code):
    """Wide and narrow loads and stores, instructions, loads in flight, and instructions a wide access: of the loop that has
    most of them, or of the whole kernel where none is in a loop."""
    wide = lambda op: bool(re.match(r"(LDG|LDGSTS|STG)\b.*\.128", op))
    narrow = lambda op: bool(re.match(r"(LDG|LDGSTS|STG)\b", op)) and not wide(op)
    of = lambda test, kind, where=code: sum(test(op) and op.startswith(kind) for _, op, _ in where)
    bodies = [[i for i in code if first <= i[0] <= last] for first, last in innermost(loops(code))]
    bodies = [b for b in bodies if any(wide(op) for _, op, _ in b)]
    body = max(bodies, key=lambda b: sum(wide(op) for _, op, _ in b), default=code)
    packs = sum(wide(op) for _, op, _ in body)
    return {"wide_loads": of(wide, "LDG"), "narrow_loads": of(narrow, "LDG"), "wide_stores": of(wide, "STG"),
            "narrow_stores": of(narrow, "STG"), "instructions": len(code), "in_a_loop": body is not code,
            "in_flight": max(most_in_flight(code), most_in_flight(body * 2) if body is not code else 0),
            "a_pack": len(body) / packs if packs else float("inf")}


def disassembler(build):
    """PATH with cuobjdump and nvdisasm, which it starts, in it; ends the script where they are not."""
    cache = build / "CMakeCache.txt"
    nvcc = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.*)$", cache.read_text() if cache.exists() else "", re.M)
    folders = [*([pathlib.Path(nvcc[1]).parent] if nvcc else []), build / "disassembler/nvidia/cu13/bin"]
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    if not shutil.which("cuobjdump", path=path) or not shutil.which("nvdisasm", path=path):
        print(f"SKIPPED: no cuobjdump and nvdisasm in {', '.join(map(str, folders))} or PATH: scripts/setup-cuda.sh gets them")
        sys.exit(77)
    return path


def object_of(tool, build, name, allow_missing=False):
    """The one object of a build that is called so; None where it may be missing."""
    objects = sorted((build / "CMakeFiles").rglob(f"{name}_cuda.cu.o"))
    if not objects and allow_missing:
        return None
    if len(objects) != 1:
        sys.exit(f"{tool}: {build} has {len(objects)} objects called {name}_cuda.cu.o")
    return objects[0]


def code_of(tool, path, folders):
    """{readable name: instructions} of the kernels for sm_90a of an object. `folders`: of disassembler()."""
    out = subprocess.run([shutil.which("cuobjdump", path=folders), "-sass", "-arch", "sm_90a", str(path)], capture_output=True,
                         text=True, env={**os.environ, "PATH": folders})
    code = functions(out.stdout)
    if out.returncode or not code:
        sys.exit(f"{tool}: {path} has no code for sm_90a: {out.stderr.strip()}")
    names = resources.readable(sorted(code))
    return {names[mangled]: c for mangled, c in code.items()}


def write_or_compare(tool, path, now, version, kernels, write):
    """Writes the page, or compares what a build has with it; ends the script where they differ."""
    if write:
        path.write_text(now)
        return print(f"{tool}: wrote {path.relative_to(ROOT)}")
    before = path.read_text()
    if f"nvcc {version};" not in before:
        print(f"SKIPPED: {path.name} was written with another nvcc than {version}; the bound holds")
        sys.exit(77)
    if now != before:
        sys.stderr.writelines(difflib.unified_diff(before.splitlines(True), now.splitlines(True), "the page", "this build"))
        sys.exit(f"{tool}: other than the page; if that is meant: scripts/gpu/{tool}.py BUILD --write")
    print(f"{tool}: {kernels} kernels, as the page says")


def read_build(build, allow_missing):
    folders = disassembler(build)
    rows = {}
    for name, kernels in WATCHED.items():
        path = object_of("kernel-code", build, name, allow_missing)
        if path is None:
            continue
        by_name = code_of("kernel-code", path, folders)
        for kernel in kernels:
            if kernel not in by_name:
                sys.exit(f"kernel-code: {path} has no kernel {kernel}, but {', '.join(sorted(by_name))}")
            rows[f"{name}: {kernel}"] = figures(by_name[kernel])
    return rows


def refusals(rows):
    slow = [f"{name} takes {f['a_pack']:.1f} instructions for 16 bytes, expected at most {MOST_A_PACK}" for name, f in rows.items()
            if f["a_pack"] > MOST_A_PACK]
    waits = [f"{name} has {f['in_flight']} loads in flight, expected {n}" for name, f in rows.items() for kernel, n in IN_FLIGHT.items()
             if f" {kernel}<" in name and f["in_flight"] < n]
    return slow + waits


def page(rows, version):
    lines = [
        "# Machine code of the memory-bound kernels",
        "",
        f"For sm_90a, by nvcc {version}; written by `scripts/gpu/kernel-code.py build-cuda --write`, compared by "
        "`scripts/test-cuda-build.sh`. Loads and stores are those of global memory, copies "
        "into shared memory among them. Instructions a pack: of the loop that "
        "moves most 16-byte packs, or, where there is none, of the whole kernel, over those packs; an H200 has "
        f"{SLOTS} issue slots in the time of one, and a kernel that takes more than {MOST_A_PACK} is refused. In flight: "
        "most 16-byte loads of a thread that are on their way when it waits for one of them; "
        f"{', '.join(f'`{k}` has {n}' for k, n in IN_FLIGHT.items())}, a whole tile, or is refused. "
        "Nothing of this is a time.",
        "",
        "| kernel | 16-byte loads | narrower | 16-byte stores | narrower | instructions | a pack | in flight |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, f in rows.items():
        lines.append(f"| `{name}` | {f['wide_loads']} | {f['narrow_loads']} | {f['wide_stores']} | {f['narrow_stores']} | "
                     f"{f['instructions']} | {f['a_pack']:.1f}{' (loop)' if f['in_a_loop'] else ''} | {f['in_flight']} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--allow-missing", action="store_true")
    args = parser.parse_args()
    version, rows = resources.compiler_version(args.build), read_build(args.build, args.allow_missing)
    now = page(rows, version)
    if args.allow_missing:
        print(now, end="")
    if refused := refusals(rows):
        sys.exit("kernel-code: " + "; ".join(refused))
    if args.allow_missing:
        return
    write_or_compare("kernel-code", PAGE, now, version, len(rows), args.write)


if __name__ == "__main__":
    main()
