#!/usr/bin/env python3
"""Checks that includes point down: a file includes its own folder and folders below it. Headers of vendors stay in
*_cuda.* files. The table of folders in docs/architecture.md is made from the list here.
Usage: scripts/checks/check-includes.py [--write]     --write renews the table; tests/python/test_check_includes.py"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = "docs/architecture.md"
BEGIN, END = "<!-- folders: scripts/checks/check-includes.py --write -->\n", "<!-- end of folders -->\n"
# Lowest first. Each folder may include itself and all above it in this list.
FOLDERS = {
    "base": "errors, exit codes, printable text, limits, fault points, secrets, child processes, SVG",
    "base/hash": "checksums and hashes: CRC-32C, SHA-256, a mix of 64 bits",
    "base/json": "nlohmann::json, whose largest templates are instantiated once",
    "kernels/tensor": "tensors, dtypes, streams, the arena, random numbers",
    "kernels/meta": "the device without memory: shapes, cost of each op, the timeline that plans are made of",
    "kernels/cuda": "the GPU: streams, memory, graphs, cuBLASLt, NVML, libraries that are opened at run time",
    "kernels/storage": "files as memory: io_uring, direct I/O, offloaded blocks",
    "kernels/elementwise": "copies, casts, sums, activations, embeddings, dropout",
    "kernels/loss": "cross-entropy, losses of preference pairs, scores of rows, distillation, labels drawn from logits",
    "kernels/attention": "attention and its backward, for CPU and CUDA, native and by cuDNN",
    "kernels/matmul": "matmuls in fp32, tf32, bf16, fp16 and fp8, quantisation of their operands",
    "kernels/matmul/grouped": "grouped matmuls of experts",
    "kernels/matmul/sparse": "the unbiased estimator of sparse output gradients",
    "kernels/norm": "RMSNorm and LayerNorm",
    "kernels/moe": "routing, dispatch and combination of tokens",
    "kernels/optimizer": "element updates of optimizers, quantised moments, sparsity, quantization of weights",
    "kernels/optimizer/onebit": "1-bit optimizers, and the error feedback of compressed sums",
    "kernels/emulation": "the CUDA sources as C++, where a block's threads are fibres",
    "parallel/comm": "groups and collectives, their transports (shared memory, TCP)",
    "parallel/shm": "collectives through the shared memory of a host",
    "parallel/nccl": "collectives by NCCL",
    "parallel/mesh": "ranks on axes, and the groups of each axis",
    "parallel/optim": "optimizers, one file each",
    "parallel/zero": "parameters, buckets, sharding and reduction of gradients, offload of states",
    "parallel/pipeline": "pipeline schedules as data: generated, checked, simulated, lowered to actions, drawn",
    "models/families": "model families as data: traits, names of weights, config.json",
    "models/layers": "layers of a decoder with hand-written backward",
    "models/attention": "attention layers: projections, norms of queries and keys, RoPE, context parallelism",
    "models/moe": "experts: the router, dispatch over ranks, expert layers",
    "models/tensor_parallel": "linear layers split in two and three dims",
    "models/decoder": "the decoder: embedding, blocks, output layer, loss",
    "runtime/files": "whole files and JSON from outside",
    "runtime/tokenizer": "text to token ids and back: BPE, bytes, GPT-2, training of tokenizers",
    "runtime/tokenizer/formats": "tokenizers of other projects: tokenizer.json, SentencePiece, Tekken",
    "runtime/chat": "chat templates, conversations, and their token ids with a loss mask",
    "runtime/records/encodings": "compression, packed integers, Thrift and FlatBuffers, which formats of records share",
    "runtime/records": "records of files that other programs wrote: Parquet, Arrow, tar, TFRecord, CSV and the like",
    "runtime/objects": "training data by URL: S3 and web servers, signatures, listings, local copies",
    "runtime/data/input": "files and folders of text as records: JSONL, data set folders, filters, lists of inputs",
    "runtime/data": "token files, sample order, packing, building data from records",
    "runtime/launch/environment": "ranks and hosts by what Slurm, torchrun and the like set",
    "runtime/launch": "processes, rendezvous, heartbeat, the verdict on a failure",
    "runtime/launch/supervisor": "the parent process of a node: children, signals, output, restarts",
    "runtime/recipe": "recipes: the schema of all keys, rules, suggestions",
    "runtime/program": "one training step: micro-batches, reduction, update, evaluation, generation",
    "runtime/routing": "records of routers' choices in training, and their replay",
    "runtime/checkpoint": "checkpoints that any layout loads",
    "runtime/replicas": "replicas of a job, of which some may be lost: the quorum, and the state that one copies",
    "runtime/weights": "weights of Hugging Face folders, both ways",
    "runtime/telemetry": "metrics, TensorBoard, traces, reports of runs",
    "runtime/eval": "held-out loss and multiple-choice tasks",
    "runtime/machines": "profiles of cards, networks, clusters and trainers, and the time of an op on them",
    "runtime/bench": "`ltrain bench`: what this machine does",
    "runtime/plan": "the plan of one recipe: memory, communication and time, from one step on the meta device",
    "runtime/distillation": "files of a teacher's largest logits",
    "runtime/train": "the loop around the step: schedule, saves, resume",
    "runtime/check": "`ltrain recipe check`: what a recipe, its files and its folder allow, before a launch",
    "runtime/generate": "text from a model",
    "planner/search": "`plan --search`: the fastest layouts that fit",
    "planner/campaign": "`plan --campaign`: weeks of training with failures",
    "planner/exports": "recipes as settings of other trainers, and back",
    "planner/report": "pictures and the HTML page of a plan",
    "planner/compositions": "the table of settings that work together",
    "app": "the command line, one file a subcommand, and the options that commands share",
    "app/machine": "what this machine has and does: `doctor`, `bench`, `profile`, `selftest`",
    "app/data": "`data`, `tokenize` and `tokenizer`",
    "app/cluster": "`slurm` and `kube`: what a job asks of a cluster, and the scripts that start it",
    "app/plan": "`plan`: options, search, exports and pictures",
}
ORDER = list(FOLDERS)
TOP = {folder.split("/")[0] for folder in ORDER}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
VENDOR = [(re.compile(r"^(cuda|cublas|cudnn|nvtx)"), re.compile(r"_cuda\.")), (re.compile(r"^nccl\."), re.compile(r"_cuda\."))]
# Headers that one header of the project includes for all others.
WRAPPED = {"nlohmann/json.hpp": "base/json/json.h"}


def folder_of(path):
    """The folder of a file in terms of FOLDERS (perhaps an unknown one); None for tests and vendors' headers."""
    parts = path.split("/")
    if parts[0] not in TOP:
        return None
    # A subfolder without a row of its own belongs to the folder above it.
    known = ("/".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
    return next((folder for folder in known if folder in FOLDERS), "/".join(parts[:2]))


def problems(path, text):
    folder = folder_of(path)
    if folder and folder not in FOLDERS:
        yield f"{path}:1: expected a folder of FOLDERS in scripts/checks/check-includes.py, got {folder}/"
        return
    for number, line in enumerate(text.splitlines(), 1):
        m = INCLUDE.match(line)
        if not m:
            continue
        target = m.group(1)
        of = folder_of(target)
        if folder and target.startswith("tests/"):
            yield f"{path}:{number}: {folder}/ may not include {target}: programs do not contain their tests"
        elif folder and of and of not in FOLDERS:
            yield f"{path}:{number}: {target} is in an unknown folder (FOLDERS in scripts/checks/check-includes.py)"
        elif folder and of and ORDER.index(of) > ORDER.index(folder):
            yield f"{path}:{number}: {folder}/ may not include {target}: {of}/ is above it (FOLDERS in scripts/checks/check-includes.py)"
        for header, allowed in VENDOR:
            if header.match(target) and not allowed.search(path):
                yield f"{path}:{number}: {target} may be included in *_cuda.* files only"
        if target in WRAPPED and path != WRAPPED[target]:
            yield f"{path}:{number}: expected {WRAPPED[target]} instead of {target}, which takes longer to compile"


def table():
    rows = [f"| `{folder}` | {text} |" for folder, text in reversed(FOLDERS.items())]
    return "\n".join(["| folder | content |", "|---|---|", *rows]) + "\n"


def page_with_table(page):
    """The page with the present table; raises ValueError where its two marks are missing."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE}: expected the lines {BEGIN.strip()!r} and {END.strip()!r}")
    return before + BEGIN + table() + END + after


def main():
    listed = subprocess.run(["git", "ls-files", "*.h", "*.cpp", "*.cu", "*.cuh"], cwd=ROOT, capture_output=True, text=True,
                            check=True)
    files = [f for f in listed.stdout.split() if (ROOT / f).exists()]  # a removed file may not be committed yet
    found = [p for f in files for p in problems(f, (ROOT / f).read_text())]
    page = (ROOT / PAGE).read_text()
    if sys.argv[1:] == ["--write"]:
        (ROOT / PAGE).write_text(page_with_table(page))
    elif page_with_table(page) != page:
        found.append(f"{PAGE}: the table of folders is out of date; scripts/checks/check-includes.py --write renews it")
    print("\n".join(found) if found else f"check-includes: {len(files)} files, {len(FOLDERS)} folders")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
