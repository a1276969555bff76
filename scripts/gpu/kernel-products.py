#!/usr/bin/env python3
"""What the machine code of attention on Hopper computes while its products run.

    scripts/gpu/kernel-products.py build-cuda            compare with the page, and with the bound; any difference fails
    scripts/gpu/kernel-products.py build-cuda --write    write the page
    scripts/gpu/kernel-products.py build-cuda --only FILE.o   print what one object has, and hold it against the bound

The page is docs/measurements/kernel-products.md, for sm_90a. It holds for one version of the compiler: with another, only
the bound is checked, and that is said (exit code 77).
"""
import argparse
import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/measurements/kernel-products.md"
spec = importlib.util.spec_from_file_location("kernel_code", ROOT / "scripts/gpu/kernel-code.py")
code_tools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(code_tools)

OBJECTS = ("attention_wgmma_forward", "attention_wgmma_backward")


def is_product(opcode):
    return opcode.startswith("HGMMA")


def product_loop(code):
    """The instructions of the loop over tiles: of those with products and no other such loop in them, the one that has most;
    [] without one. What stands behind an EXIT is no loop, but code that was moved out of one and goes back."""
    within = lambda first, last: [i for i in code if first <= i[0] <= last]
    products = lambda body: sum(is_product(op) for _, op, _ in body)
    spans = [span for span in code_tools.loops(code) if products(within(*span)) and not any(op == "EXIT" for _, op, _ in within(*span))]
    return max((within(*span) for span in code_tools.innermost(spans)), key=products, default=[])


def figures(code):
    """Of the loop over tiles: products, values that go from the lanes' registers to those of the warp, and for each wait [groups of products that it leaves in flight, exponentials from there
    to the next wait], in the order of the instructions from the first wait on. None without such a loop."""
    loop, products, moves, waits, before = product_loop(code), 0, 0, [], 0
    for _, opcode, operands in loop:
        products += is_product(opcode)
        moves += opcode.startswith("R2UR")
        if opcode.startswith("WARPGROUP.DEPBAR"):
            waits.append([int(operands.rsplit(",", 1)[1], 16), 0])
        elif opcode.startswith("MUFU.EX2"):
            if waits:
                waits[-1][1] += 1
            else:
                before += 1
    if waits:
        waits[-1][1] += before  # the loop goes on at its beginning
    return {"products": products, "moves": moves, "waits": waits} if loop else None


def read_object(path, folders):
    """{kernel: figures} of the kernels of an object that have products."""
    code = code_tools.code_of("kernel-products", path, folders)
    return {name: figures(code[name]) for name in sorted(code) if any(is_product(op) for _, op, _ in code[name])}


def read_build(build, folders):
    rows = {}
    for name in OBJECTS:
        rows |= read_object(code_tools.object_of("kernel-products", build, name), folders)
    return rows


def refusals(rows):
    """Why kernels are slower than they are written to be; empty where none is."""
    found = []
    for name, f in rows.items():
        if f is None:
            found.append(f"{name} has products in no loop")
            continue
        most = max((left for left, _ in f["waits"]), default=0)
        late = sum(n for left, n in f["waits"] if left < max(most, 1))
        if late:
            found.append(f"{name} computes {late} of the {sum(n for _, n in f['waits'])} exponentials of its loop behind a wait "
                         "that they do not need")
        if 2 * f["moves"] > f["products"]:
            found.append(f"{name} makes descriptors of its {f['products']} products in the lanes' registers: {f['moves']} R2UR")
        if 4 * len(f["waits"]) > f["products"]:
            found.append(f"{name} waits {len(f['waits'])} times for {f['products']} products")
    return found


def page(rows, version):
    lines = [
        "# What attention on Hopper computes while its products run",
        "",
        f"For sm_90a, by nvcc {version}; written by `scripts/gpu/kernel-products.py build-cuda --write`, compared by "
        "`scripts/test-cuda-build.sh`. Of the loop over tiles of each kernel, in the order of its machine code: `HGMMA` "
        "instructions; and for each wait how many groups of them it leaves in flight, and how many `MUFU.EX2` stand between it "
        "and the next one. A kernel is refused whose exponentials do not all stand behind the wait that leaves most in flight: "
        "the compiler may move a later wait up over them, with the same results, registers and spills. `R2UR` move a value from "
        "the lanes' registers to those of the warp, where a descriptor of a product must be; a kernel that has them for each "
        "product is refused: it makes its descriptors in the lanes' registers, and each product waits for its own. Nothing of "
        "this is a time.",
        "",
        "| kernel | products | `R2UR` | groups in flight: exponentials |",
        "|---|---|---|---|",
    ]
    for name, f in rows.items():
        waits = ", ".join(f"{left}: {n}" for left, n in f["waits"])
        lines.append(f"| `{name}` | {f['products']} | {f['moves']} | {waits} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", type=pathlib.Path)
    args = parser.parse_args()
    folders = code_tools.disassembler(args.build)
    if args.only:
        rows = read_object(args.only, folders)
        for name, f in rows.items():
            print(name, f)
        if why := refusals(rows):
            sys.exit("kernel-products: " + "; ".join(why))
        return
    version, rows = code_tools.resources.compiler_version(args.build), read_build(args.build, folders)
    if why := refusals(rows):
        sys.exit("kernel-products: " + "; ".join(why))
    code_tools.write_or_compare("kernel-products", PAGE, page(rows, version), version, len(rows), args.write)


if __name__ == "__main__":
    main()
