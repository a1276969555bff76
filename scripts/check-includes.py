#!/usr/bin/env python3
"""Refuses an include that points up: from a room to one above it, and vendor headers outside their files.
Usage: scripts/check-includes.py; tests/python/test_check_includes.py tests it."""
import pathlib
import re
import subprocess
import sys

# The rooms, each above those before it: a file includes its own room and lower ones, so that no two rooms include each
# other. app -> runtime -> models -> parallel -> kernels.
FLOORS = {
    "kernels": "base tensor meta cuda storage elementwise attention matmul norm moe optimizer emulation",
    "parallel": "comm shm nccl mesh optim zero pipeline",
    "models": "families layers moe tensor_parallel decoder",
    "runtime": "files tokenizer data launch recipe program checkpoint weights telemetry eval plan train check generate",
    "app": "",
}
ROOMS = [f"{floor}/{room}" if room else floor for floor, rooms in FLOORS.items() for room in rooms.split() or [""]]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
VENDOR = [(re.compile(r"^(cuda|cublas|cudnn|nvtx)"), re.compile(r"_cuda\.")), (re.compile(r"^nccl\."), re.compile(r"_cuda\."))]


def room_of(path):
    """The room of a file, None where it is in none: tests, a vendor's header."""
    parts = path.split("/")
    if parts[0] not in FLOORS:
        return None
    return parts[0] if parts[0] == "app" else "/".join(parts[:2])


def problems(path, text):
    room = room_of(path)
    if room and room not in ROOMS:
        yield f"{path}:1: {room}/ is no room: {', '.join(ROOMS)} (FLOORS in scripts/check-includes.py)"
        return
    for number, line in enumerate(text.splitlines(), 1):
        m = INCLUDE.match(line)
        if not m:
            continue
        target = m.group(1)
        of = room_of(target)
        if room and target.startswith("tests/"):
            yield f"{path}:{number}: {room}/ may not include {target}: programs do not contain their tests"
        elif room and of and of not in ROOMS:
            yield f"{path}:{number}: {target} is in no room"
        elif room and of and ROOMS.index(of) > ROOMS.index(room):
            yield f"{path}:{number}: {room}/ may not include {target}: {of}/ is above it (FLOORS in scripts/check-includes.py)"
        for header, allowed in VENDOR:
            if header.match(target) and not allowed.search(path):
                yield f"{path}:{number}: {target} may be included in *_cuda.* files only"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files", "*.h", "*.cpp", "*.cu", "*.cuh"], cwd=root, capture_output=True, text=True,
                            check=True)
    files = [f for f in listed.stdout.split() if (root / f).exists()]  # or removed, and not yet committed
    found = [p for f in files for p in problems(f, (root / f).read_text())]
    print("\n".join(found) if found else f"check-includes: {len(files)} files, {len(ROOMS)} rooms")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
