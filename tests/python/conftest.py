"""What tests of Python scripts share. Run by ctest as `python: scripts`, or by hand:
LTRAIN_BINARY=build/ltrain python3 -m pytest tests/python"""
import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts" / "compare"))


def script(name):
    """NAME.py of scripts/ or a folder below it as a module. The script does nothing when it is imported."""
    path = next((ROOT / "scripts").rglob(f"{name}.py"))
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shell(command, **variables):
    """The finished process of a command in the repository's folder; its output is text."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
                          shell=isinstance(command, str))


def ltrain(*arguments):
    """`ltrain ARGUMENTS` in the repository's folder, by the binary of LTRAIN_BINARY, build/ltrain without it."""
    return shell([os.environ.get("LTRAIN_BINARY", str(ROOT / "build" / "ltrain")), *arguments])
