#!/usr/bin/env python3
"""All that needs a GPU, on a machine with one and no network. Started by scripts/gpu-check.sh.

Checks run in the order of their worth. Each has a time limit of its own, and its result is a line of OUT/results.jsonl as
soon as it is known. One that fails runs once more with synchronous launches, so that the op is named. Without a GPU the
parts for the CPU run, and the others are skipped by name once their jobs have been planned."""
import argparse
import concurrent.futures
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

import gpu_measure
import measure

ROOT = measure.REPOSITORY
PACKED = os.path.exists(os.path.join(ROOT, "bin", "ltrain"))  # a pack of scripts/package/pack-gpu-check.sh
BUILD = os.path.join(ROOT, "bin") if PACKED else os.path.join(ROOT, "build-cuda")
LTRAIN = os.path.join(BUILD, "ltrain")
TEST_CUDA = os.path.join(BUILD, "test_cuda") if PACKED else os.path.join(BUILD, "tests", "test_cuda")
LIBRARIES = {"libcublasLt.so": "cublas", "libnccl.so": "nccl", "libcudnn.so": "cudnn", "libnvrtc.so": "nvrtc"}
SYNCHRONOUS = {"CUDA_LAUNCH_BLOCKING": "1", "LTRAIN_CUDA_SYNC": "1"}
AGAIN_SECONDS = 40
HANG_SECONDS = 15  # without a byte of output and a change of a file: a hang, which ends the check
FEW_STEPS = ["train.train_steps=3", "train.eval_interval=0", "schedule.lr_warmup_steps=1", "train.log_interval=1",
             "checkpoint.save_interval=0", "checkpoint.save_at_end=false", "checkpoint.resume=never",
             "launch.distributed_timeout_minutes=1"]
SMALL = ["precision=fp32", "model.num_hidden_layers=4", "model.hidden_size=128", "model.intermediate_size=256",
         "model.num_attention_heads=4", "train.micro_batch_size=1", "train.global_batch_size=8", "data.eval=[]", *FEW_STEPS]

class Check:
    """One line of the table. `run(log)` gives a reason to fail, or None; `need`: gpu, torch, sanitizer or cpu."""

    def __init__(self, name, limit, run, need="gpu", retry=True):
        self.name, self.limit, self.run, self.need, self.retry = name, limit, run, need, retry


class Failed(RuntimeError):
    """Of a check, with the reason."""


class TimedOut(Failed):
    """Of a command that was ended at its limit, or that hung."""


def newest_change(*paths):
    """Time of the last change of these files and of everything below these folders."""
    newest = 0.0
    for path in paths:
        for folder, _, files in [(path, [], [""])] if os.path.isfile(path) else os.walk(path):
            for name in files:
                try:
                    newest = max(newest, os.stat(os.path.join(folder, name) if name else folder).st_mtime)
                except OSError:
                    pass
    return newest


class Checks:
    def __init__(self, o):
        self.o, self.out, self.began = o, o.out, time.monotonic()
        self.work = tempfile.mkdtemp(prefix="ltrain-gpu-check-")
        self.logs = os.path.join(self.work, "logs")
        os.makedirs(self.logs)
        self.results, self.lock, self.missing = [], threading.Lock(), {}
        self.environment = dict(os.environ, LTRAIN_JOIN_TIMEOUT="30", LTRAIN_BINARY=LTRAIN)
        if PACKED:
            self.environment["LD_LIBRARY_PATH"] = os.path.join(ROOT, "lib") + (
                ":" + os.environ["LD_LIBRARY_PATH"] if os.environ.get("LD_LIBRARY_PATH") else "")
        self.card, self.sanitizer, self.running, self.planning = None, None, set(), False

    def left(self):
        return self.o.seconds - (time.monotonic() - self.began)

    def command(self, command, log, limit, **environment):
        """Output goes to `log`. Failed with the last line of it, TimedOut at the limit; the seconds it took."""
        began = time.monotonic()
        if self.planning:  # without a GPU: are these jobs that ltrain takes?
            if command[:2] != [LTRAIN, "run"]:
                return 0.0
            profile = [] if "device=cpu" in command else ["--profile", "h200"]
            command = [LTRAIN, "plan", *profile, *command[2:]]
        limit = min(limit, self.left())
        if limit <= 1:
            raise TimedOut("no time left")
        with open(log, "a", encoding="utf-8") as to:
            to.write("$ " + " ".join(f"{k}={v}" for k, v in environment.items()) + " " + " ".join(command) + "\n")
            to.flush()
            process = subprocess.Popen(command, stdout=to, stderr=to, stdin=subprocess.DEVNULL, cwd=self.work,
                                       env=dict(self.environment, **environment), start_new_session=True)
            self.running.add(process)
            try:
                code = self.wait(process, log, command, limit)
            finally:
                try:  # whatever it started goes with it
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
                self.running.discard(process)
        if code:
            raise Failed(f"exit code {code}: {last_line(log)}")
        return time.monotonic() - began

    def wait(self, process, log, command, limit):
        """Exit code of a command. TimedOut at its limit, or when a job of ltrain's shows no progress for HANG_SECONDS."""
        began = time.monotonic()
        folders = [word[len("output_dir="):] for word in command if word.startswith("output_dir=")]
        changed, seen = began, 0.0
        while True:
            try:
                return process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                if now - began > limit:
                    raise TimedOut(f"ended after {limit:.0f} s") from None
                newest = newest_change(log, *folders)
                if newest != seen:
                    changed, seen = now, newest
                if folders and now - changed > HANG_SECONDS:
                    raise TimedOut(f"hangs: no output for {HANG_SECONDS} s") from None

    def one(self, check):
        """Runs a check and writes what came of it."""
        log = os.path.join(self.logs, re.sub(r"[^\w.-]+", "-", check.name)[:80] + ".log")
        began, result, why = time.monotonic(), "passed", ""
        self.planning = check.need in self.missing
        if self.planning:
            result, why = "skipped", self.missing[check.need]
            try:
                check.run(log, check.limit, {})
            except Failed as e:
                result, why = "failed", f"its plan: {e}"
        elif self.left() < 5:
            result, why = "not run", "out of time"
        else:
            try:
                self.attempt(check, log, {})
                left_out = skipped_in(log)
                if left_out:
                    result, why = "skipped", left_out
            except Failed as e:
                result, why = "timed out" if isinstance(e, TimedOut) else "failed", str(e)
                if check.need != "cpu" and self.left() > 5 and not isinstance(e, TimedOut) and check.retry:
                    again = log[:-4] + "-again.log"
                    try:
                        self.attempt(check, again, SYNCHRONOUS)
                        why += "; passed with synchronous launches"
                    except Failed as second:
                        why += f"; with synchronous launches: {second}"
            except Exception as e:  # a defect of one check must not end the others
                result, why = "failed", f"{type(e).__name__}: {e}"
        self.write({"name": check.name, "result": result, "seconds": round(time.monotonic() - began, 1), "why": why})

    def attempt(self, check, log, environment):
        reason = check.run(log, AGAIN_SECONDS if environment else check.limit, environment)
        if reason:
            raise Failed(reason)

    def write(self, line):
        with self.lock:
            self.results.append(line)
            with open(os.path.join(self.out, "results.jsonl"), "a", encoding="utf-8") as to:
                to.write(json.dumps(line) + "\n")
            print(f"gpu-check: {line['name']}: {line['result']}{': ' + line['why'] if line['why'] else ''} "
                  f"({line['seconds']} s)", flush=True)

    def several(self, checks, width):
        checks = [k for k in checks if k.need == "cpu" or re.search(self.o.only, k.name)]
        with concurrent.futures.ThreadPoolExecutor(width) as pool:
            list(pool.map(self.one, checks))
        self.keep_logs()

    def keep_logs(self):
        """One archive, made anew: what is there when the machine goes is whole."""
        path = os.path.join(self.out, "logs.tar.xz")
        with tarfile.open(path + ".new", "w:xz", preset=3) as archive:
            archive.add(self.logs, "logs")
        os.replace(path + ".new", path)

    def table(self):
        version = subprocess.run([LTRAIN, "--version"], capture_output=True, text=True, env=self.environment, check=False)
        version = (version.stdout.splitlines() or ["no version"])[0]
        card = self.card or "no GPU"
        rows = [f"| {r['name']} | {r['result']} | {r['seconds']} | {r['why'].replace('|', '/')} |" for r in self.results]
        counts = {}
        for r in self.results:
            counts[r["result"]] = counts.get(r["result"], 0) + 1
        text = [f"# GPU check, {time.strftime('%Y-%m-%d')}", "", f"{card}; {version}", "",
                ", ".join(f"{n} {k}" for k, n in sorted(counts.items())) + f"; {time.monotonic() - self.began:.0f} s.", "",
                "| check | result | seconds | why |", "|---|---|---|---|", *rows]
        for report in sorted(glob.glob(os.path.join(self.logs, "compare-*.md"))):  # their JSON is in the archive
            with open(report, encoding="utf-8") as lines:
                text += ["", *(("#" + line if line.startswith("#") else line) for line in lines.read().splitlines())]
        with open(os.path.join(self.out, "gpu-check.md"), "w", encoding="utf-8") as to:
            to.write("\n".join(text) + "\n")
        print("gpu-check: " + text[4], flush=True)
        return counts

    # Parts of checks.

    def tokens(self, log, limit, _):
        """Text for small models and random tokens for the 1B shape; a pack brings both."""
        self.text, self.random = (os.path.join(ROOT if PACKED else self.work, "tokens", n) for n in ("text", "random"))
        if PACKED:
            return None
        self.command([LTRAIN, "data", "build", "--tokenizer", "byte", "--split", "95,5", "--force", "--input",
                      *(os.path.join(ROOT, n) for n in ("README.md", "docs", "kernels", "runtime")), "--output", self.text],
                     log, limit)
        measure.write_tokens(self.random, 300_000, 50_000)
        return None

    def small(self, folder, *overrides):
        if "device=cuda" in overrides and any(s.startswith("parallel.") for s in overrides):
            overrides += ("debug.shared_gpu=true",)  # all ranks on one card
        return [LTRAIN, "run", os.path.join(ROOT, "recipes", "smoke-1gpu.yaml"), f"data.train=[{{path: {self.text}-train}}]",
                *SMALL, f"output_dir={os.path.join(self.work, folder)}", *overrides]

    def losses(self, folder):
        with open(os.path.join(self.work, folder, "metrics.jsonl"), encoding="utf-8") as lines:
            return [x["lm_loss"] for x in map(json.loads, lines) if "lm_loss" in x]

    def same(self, first, second, tolerance):
        if self.planning:
            return None
        a, b = self.losses(first), self.losses(second)
        if len(a) != 3 or len(b) != 3:
            return f"{len(a)} and {len(b)} steps where 3 were asked for"
        worst = max(abs(x - y) / x for x, y in zip(a, b))
        if not worst <= tolerance:
            return f"losses {b} where {a} was expected, {worst:.1e} apart (at most {tolerance:.0e})"
        return None

    def as_cpu(self, name, *overrides):
        """A job on the GPU, its ranks on one card, beside the same model on one CPU process."""
        def run(log, limit, environment):
            self.command(self.small(name, "device=cuda", *overrides), log, limit, **environment)
            return self.same("cpu", name, 1e-4)
        return Check(name, 60, run)

    def as_own_cpu(self, name, tolerance, *overrides):
        """What changes numbers, beside the same on the CPU."""
        def run(log, limit, environment):
            self.command(self.small(f"{name}-cpu", "device=cpu", *overrides), log, limit)
            self.command(self.small(name, "device=cuda", *overrides), log, limit, **environment)
            return self.same(f"{name}-cpu", name, tolerance)
        return Check(name, 90, run)

    def cudnn(self, name, tolerance, *overrides):
        """cuDNN's attention beside native kernels; a run of cuDNN's fails where it would be another."""
        def run(log, limit, environment):
            heads = ["device=cuda", "precision=bf16", "model.num_attention_heads=2", *overrides]
            for who in ("own", "cudnn"):
                self.command(self.small(f"{name}-{who}", *heads, f"attention_backend={who}"), log, limit, **environment)
            return self.same(f"{name}-own", f"{name}-cudnn", tolerance)
        return Check(name, 60, run)

    def ends(self, name, fault, says):
        """Two ranks of which one fails: the job ends soon, and names it."""
        def run(log, limit, environment):
            try:
                self.command(self.small(name, "device=cuda", "parallel.data=2"), log, limit,
                             LTRAIN_FAULT=fault, **environment)
            except TimedOut:
                raise
            except Failed:
                with open(log, encoding="utf-8", errors="replace") as text:
                    return None if re.search(says, text.read()) else f"nothing says \"{says}\""
            return None if self.planning else "the job ended with 0"
        return Check(name, 45, run)


def last_line(path):
    with open(path, encoding="utf-8", errors="replace") as text:
        lines = [line.strip() for line in text if line.strip() and not line.startswith("$ ")]
    said = [line for line in lines if line.startswith("ltrain:") or "FAILED" in line or "error" in line.lower()]
    return (said or lines or ["no output"])[-1][:300]


def skipped_in(path):
    """What test programs say that they left out."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as text:
        found = [line[len("SKIPPED: "):].strip() for line in text if line.startswith("SKIPPED: ")]
    return found[0] if found else ""


def library_folders():
    """Where CUDA's libraries are: Python's packages, toolkits, the loader's own; one folder for each library."""
    folders, found = [], {}
    for path in sys.path + glob.glob("/usr/lib/python3*/site-packages") + glob.glob("/opt/*/.venv/lib/python3*/site-packages"):
        folders += sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib")))
    folders += sorted(glob.glob("/usr/local/cuda*/lib64")) + sorted(glob.glob("/usr/local/cuda*/targets/x86_64-linux/lib"))
    for line in subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout.splitlines() \
            if shutil.which("ldconfig") else []:
        if "=> " in line:
            folders.append(os.path.dirname(line.split("=> ")[1]))
    for name in LIBRARIES:
        for folder in folders:
            there = sorted(glob.glob(os.path.join(folder, name + "*")))
            if there:
                found[name] = there[-1]
                break
    return found


def torch_ceilings(checks):
    """Rates of a copy and of a product through PyTorch, which others are held against."""
    code = ("import torch, time, json\n"
            "def rate(f, n):\n"
            "  for _ in range(3): f()\n"
            "  torch.cuda.synchronize(); t = time.perf_counter()\n"
            "  for _ in range(n): f()\n"
            "  torch.cuda.synchronize(); return n / (time.perf_counter() - t)\n"
            "a = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16); b = torch.randn_like(a)\n"
            "x = torch.empty(1 << 30, device='cuda', dtype=torch.bfloat16); y = torch.empty_like(x)\n"
            "print(json.dumps({'matmul_tflops': rate(lambda: a @ b, 20) * 2 * 8192 ** 3 / 1e12,\n"
            "  'copy_gb_per_second': rate(lambda: y.copy_(x), 20) * 2 * x.numel() * 2 / 1e9, 'torch': torch.__version__}))\n")

    def run(log, limit, _):
        checks.command([sys.executable, "-c", code], log, limit)
        if checks.planning:
            return
        with open(log, encoding="utf-8") as text, open(os.path.join(checks.out, "environment.txt"), "a", encoding="utf-8") as to:
            to.write(text.read().splitlines()[-1] + "\n")
    return Check("ceilings of this card", 60, run, "torch")


def environment(checks):
    """Card, driver, libraries: what is missing is said, and what needs it is skipped."""
    path = os.path.join(checks.out, "environment.txt")
    found = library_folders()
    given = [checks.environment.get("LTRAIN_CUDA_LIBS", "")] + [os.path.dirname(p) for p in found.values()]
    checks.environment["LTRAIN_CUDA_LIBS"] = ":".join(dict.fromkeys(g for g in given if g))
    with open(path, "w", encoding="utf-8") as to:
        for name in LIBRARIES:
            to.write(f"{name}: {found.get(name, 'not found')}\n")
    nvidia = shutil.which("nvidia-smi")
    said = subprocess.run([nvidia, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                          capture_output=True, text=True, check=False) if nvidia else None
    if said is None or said.returncode:
        checks.missing["gpu"] = "no GPU: " + ("nvidia-smi is not there" if said is None else (said.stdout + said.stderr).strip()[:200])
        checks.missing["torch"] = checks.missing["sanitizer"] = checks.missing["gpu"]
    else:
        checks.card = said.stdout.strip()
        if subprocess.run([sys.executable, "-c", "import torch; assert torch.cuda.is_available()"], capture_output=True,
                          check=False, timeout=120).returncode:
            checks.missing["torch"] = f"{sys.executable} has no torch that sees the GPU"
        checks.sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
        if not checks.sanitizer:
            checks.missing["sanitizer"] = "compute-sanitizer is not there"

    def loads(log, limit, _):
        checks.command([LTRAIN, "--version"], log, limit)
        with open(log, encoding="utf-8") as text:
            print(text.read().splitlines()[1])

    def doctor(log, limit, _):
        checks.command([LTRAIN, "doctor"], log, limit)
        with open(log, encoding="utf-8") as text, open(path, "a", encoding="utf-8") as to:
            to.write(text.read())
    return [Check("the program starts", 20, loads, "cpu"), Check("doctor", 40, doctor, "cpu")]


def cpu_parts(checks):
    def plans(log, limit, _):
        for recipe in sorted(glob.glob(os.path.join(ROOT, "recipes", "*.yaml"))):
            checks.command([LTRAIN, "plan", recipe], log, limit)

    def reference(log, limit, _):
        checks.command(checks.small("cpu", "device=cpu"), log, limit)
        return None if len(checks.losses("cpu")) == 3 else "not three steps"

    def two(log, limit, _):
        checks.command(checks.small("cpu-2", "device=cpu", "parallel.data=2", "parallel.zero_stage=2"), log, limit)
        return checks.same("cpu", "cpu-2", 1e-5)
    return [Check("tokens", 60, checks.tokens, "cpu"), Check("plans of all recipes", 60, plans, "cpu"),
            Check("one CPU process", 60, reference, "cpu"), Check("two CPU processes", 60, two, "cpu")]


def cases(checks, *chosen):
    """Names of cases of test_cuda, and what it said."""
    listed = subprocess.run([TEST_CUDA, "--list-test-names-only", *chosen], capture_output=True, text=True, env=checks.environment,
                            check=False)
    return [n.strip() for n in listed.stdout.splitlines() if n.strip()], (listed.stdout + listed.stderr).strip()[:300]


def quoted(name):
    """As an argument of test_cuda: this case alone."""
    return name.replace("\\", "\\\\").replace(",", "\\,").replace("[", "\\[")


def parity(checks):
    """The cases of test_cuda, a process each: one fault of a GPU ends all that come after it in a process."""
    names, said = cases(checks)
    if not names:
        return [Check("test_cuda", 1, lambda *_: f"lists no case: {said}", "cpu")]

    def case(name):
        def run(log, limit, environment_):
            try:
                checks.command([TEST_CUDA, quoted(name)], log, limit, **environment_)
            except Failed as e:  # 77: all of it was left out
                if "exit code 77" not in str(e):
                    raise
        return Check("test_cuda: " + name, 60 if name.startswith("slow:") else 20, run)
    return [case(n) for n in sorted(names, key=lambda n: n.startswith("slow:"))]


def jobs(c):
    small_offload = ["parallel.data=2", "parallel.zero_stage=3", "offload.optimizer.device=cpu", "offload.params.device=cpu",
                     "offload.activations.device=cpu"]
    small_files = ["parallel.data=2", "parallel.zero_stage=3",
                   *(f"offload.{what}={{device: nvme, path: {c.work}}}" for what in ("optimizer", "params", "activations"))]
    moe = ["model.architecture=mixtral", "model.moe.num_experts=4", "model.moe.top_k=2"]

    def experts(log, limit, environment_):
        c.command(c.small("experts-cpu", "device=cpu", *moe), log, limit)
        c.command(c.small("experts", "device=cuda", *moe, "parallel.data=2", "parallel.expert=2"), log,
                  limit, **environment_)
        return c.same("experts-cpu", "experts", 1e-4)

    def repeats(log, limit, environment_):
        for n in (1, 2):
            c.command(c.small(f"repeats-{n}", "device=cuda", "precision=bf16", "model.num_attention_heads=2",
                              "attention_backend=cudnn"), log, limit, **environment_)
        return c.same("repeats-1", "repeats-2", 0)
    return [c.as_cpu("one rank"), c.as_own_cpu("bf16", 1e-2, "precision=bf16"), c.as_cpu("data", "parallel.data=2"),
            c.as_cpu("tensor", "parallel.tensor=2", "parallel.sequence_parallel=true"),
            c.as_cpu("pipeline 1f1b", "parallel.pipeline=2", "parallel.schedule=1f1b"),
            c.as_cpu("pipeline gpipe", "parallel.pipeline=2", "parallel.schedule=gpipe"),
            *(c.as_cpu(f"zero {s}", "parallel.data=2", f"parallel.zero_stage={s}") for s in (1, 2, 3)),
            c.as_cpu("context", "parallel.context=2"), Check("experts", 90, experts),
            c.as_cpu("cuda graphs", "cuda_graphs=on"), c.cudnn("cudnn deterministic", 1e-2),
            c.cudnn("cudnn backward", 1e-2, "deterministic=false"),
            c.cudnn("cudnn graphs", 1e-2, "deterministic=false", "cuda_graphs=on"), Check("cudnn repeats its bits", 60, repeats),
            c.as_own_cpu("fp16", 1e-2, "precision=fp16"), c.as_own_cpu("fp8", 1e-2, "precision=fp8"),
            c.as_own_cpu("fp8 blockwise", 1e-2, "precision=fp8", "fp8.recipe=blockwise"),
            c.as_cpu("offload", *small_offload), c.as_cpu("offload to files", *small_files),
            c.as_own_cpu("8-bit AdamW", 1e-3, "optimizer.kind=adamw8bit"),
            c.as_own_cpu("sophia in bf16", 1e-2, "precision=bf16", "optimizer.kind=sophia", "optimizer.hessian_interval=2"),
            c.as_own_cpu("one-bit", 1e-3, "parallel.data=2", "optimizer.kind=onebit_adam", "optimizer.freeze_step=2"),
            c.as_own_cpu("sophia", 1e-3, "optimizer.kind=sophia", "optimizer.hessian_interval=2"),
            c.as_own_cpu("int8 gradients", 1e-3, "parallel.data=2", "parallel.grad_reduce_dtype=int8")]


def smoke(c):
    def run(log, limit, environment_):
        folder = os.path.join(c.work, "smoke")
        c.command([LTRAIN, "run", os.path.join(ROOT, "recipes", "smoke-1gpu.yaml"), f"data.train=[{{path: {c.text}-train}}]",
                   f"data.eval=[{{path: {c.text}-val}}]", f"output_dir={folder}", "checkpoint.resume=never"], log, limit,
                  **environment_)
        if c.planning:
            return None
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as lines:
            last = [x["lm_loss"] for x in map(json.loads, lines) if x.get("step") == 100 and "lm_loss" in x]
        # The same bound as in scripts/smoke.sh: the CPU ends at 2.83, a model that knows only how often each byte comes stays at 3.9.
        return None if last and last[0] < 3.2 else f"loss {last} at step 100, not below 3.2"
    return [Check("smoke", 90, run), c.ends("a rank that is killed", "train.loss:1:2:kill", r"rank 1 .*SIGKILL"),
            c.ends("a rank that throws", "train.loss:1:2:error", r"rank 1 .*fault injected")]


def sanitizer(c):
    """racecheck of attention, and memcheck of one case after another, so that something comes of the time there is."""
    kernels = ["~*training*", "~every*", "~a *", "~ltrain run*", "~slow:*"]  # the kernels alone

    def under(tool, limit, name, chosen):
        def run(log, seconds, _):
            try:
                c.command([c.sanitizer or "compute-sanitizer", "--tool", tool, "--error-exitcode", "1", TEST_CUDA, chosen], log, seconds)
            except Failed as e:  # 77: all of it was left out
                if "exit code 77" not in str(e):
                    raise
        return Check(f"compute-sanitizer {tool}: {name}", limit, run, "sanitizer", retry=False)
    names, said = cases(c, *kernels)
    if not names:
        return [Check("compute-sanitizer", 1, lambda *_: f"test_cuda lists no kernel's case: {said}", "cpu")]
    if "sanitizer" in c.missing:  # one line says so
        names = names[:1]
    return [under("racecheck", 80, "attention on tensor cores", "attention on tensor cores*"),
            *(under("memcheck", 40, name, quoted(name)) for name in names)]


def beside_torch(c):
    def script(name, *options):
        return lambda log, limit, _: c.command(
            [sys.executable, os.path.join(ROOT, "scripts", "compare", name), "--binary", LTRAIN, "--out", c.logs, *options],
            log, limit) and None

    def bench(log, limit, _):
        c.command([LTRAIN, "bench", "--device", "cuda", "--output", os.path.join(c.out, "profile.json")], log, limit)
    return [Check("attention beside PyTorch", 90, script("compare_attention_gpu.py", "--rounds", "1", "--budget", "60"), "torch"),
            Check("bench", 60, bench)]


def main():
    a = argparse.ArgumentParser(prog="scripts/gpu-check.sh", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("out", nargs="?", default="gpu-check", help="folder of the results: at most six small files")
    a.add_argument("--seconds", type=float, default=580, help="for everything")
    a.add_argument("--only", default="", help="a regular expression: of the checks of a GPU, those that have it in their names")
    o = a.parse_args()
    for program in (LTRAIN, TEST_CUDA):
        if not os.path.exists(program):
            sys.exit(f"gpu-check: {program}: not there; scripts/build.sh cuda ltrain test_cuda builds it, "
                     "scripts/package/pack-gpu-check.sh packs it")
    o.out = os.path.abspath(o.out)
    os.makedirs(o.out, exist_ok=True)
    for name in ("results.jsonl", "steps.jsonl"):  # files that are appended to
        if os.path.exists(os.path.join(o.out, name)):
            os.remove(os.path.join(o.out, name))
    c = Checks(o)

    def stop(*_):
        raise SystemExit("gpu-check: told to stop")
    signal.signal(signal.SIGTERM, stop)
    counts = {}
    try:
        c.several(environment(c), 1)
        c.several(cpu_parts(c), 1)
        c.several([torch_ceilings(c)], 1)
        c.several(parity(c), 8)
        c.several(jobs(c), 4)
        c.several(smoke(c), 3)
        peers = os.path.join(ROOT, "scripts", "compare")
        steps = [gpu_measure.step_check(c, Check, LTRAIN, *x) for x in gpu_measure.STEPS]
        torch = [gpu_measure.torch_check(c, Check, sys.executable, peers, *x) for x in gpu_measure.TORCH]
        torch += [gpu_measure.peft_check(c, Check, sys.executable, peers, x) for x in gpu_measure.PEFT]
        c.several(steps[:8] + torch[:2] + steps[8:] + torch[2:], 1)
        c.several(beside_torch(c), 1)
        c.several(sanitizer(c), 4)
    finally:
        for process in list(c.running):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        c.keep_logs()
        counts = c.table()
        shutil.rmtree(c.work, ignore_errors=True)
    sys.exit(1 if counts.get("failed") or counts.get("timed out") else 0)


if __name__ == "__main__":
    main()
