"""Every key of a recipe does what `ltrain recipe keys` says that it changes, or is refused: each row of keys.txt is run
without and with the key's value, and what the two runs computed, planned, printed and wrote is compared."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from conftest import BINARY, ROOT

sys.path.insert(0, str(ROOT / "tests" / "python"))
from object_server import ObjectServer  # noqa: E402

WORDS = {
    "DEEPSEEK": "model.architecture=deepseek_v2 model.moe.num_experts=4 model.moe.top_k=2 model.q_lora_rank=12 "
                "model.kv_lora_rank=16 model.qk_nope_head_dim=8 model.qk_rope_head_dim=4 model.v_head_dim=6",
    "DEEPSEEK_V3": "model.architecture=deepseek_v3 model.moe.num_experts=4 model.moe.top_k=2 model.q_lora_rank=12 "
                   "model.kv_lora_rank=16 model.qk_nope_head_dim=8 model.qk_rope_head_dim=4 model.v_head_dim=6",
    "DILOCO": "parallel.data=2 diloco.sites=2 checkpoint.save_interval=3",
    "MOE": "model.architecture=mixtral model.moe.num_experts=4 model.moe.top_k=2",
    "ONEBIT_LAMB": "optimizer.kind=onebit_lamb optimizer.freeze_step=2 train.train_steps=6 parallel.data=2 "
                   "optimizer.lr=0.01",
    "YARN": "model.rope_scaling.rope_type=yarn model.rope_scaling.factor=8 model.rope_theta=64 model.head_dim=32 "
            "model.rope_scaling.original_max_position_embeddings=64 model.rope_scaling.beta_fast=2",
    "LONGROPE": "model.rope_scaling.rope_type=longrope model.head_dim=8 model.rope_scaling.short_factor=[1,1,1,1] "
                "model.rope_scaling.long_factor=[1,1,1,1]",
    "LINES": 'data.train=[{"path":lines}]',  # many short documents
    "REPEATED": 'data.train=[{"path":repeated.jsonl}] data.cache=cache',
    "BARE": 'data.train=[{"path":bare}]',  # the same without a sidecar
}
# Keys whose other values this build or any machine without a GPU refuses, and what the refusal names.
REFUSED = {
    "cluster=nowhere": "cluster nowhere: is no cluster file",
    "device=cuda": "device = cuda",
    "cuda_graphs=on": "cuda_graphs",
    "attention_backend=cudnn": "attention_backend",
    "data.tokenizer.kind=gpt2": "data.tokenizer",
    "checkpoint.resume=nowhere": "checkpoint.resume = nowhere",
    "checkpoint.upcycle=nowhere": "checkpoint.upcycle",
    "checkpoint.load.path=nowhere": "checkpoint.load.path",
    "parallel.schedule_file=nowhere parallel.pipeline=2": "parallel.schedule_file",
    "offload.optimizer.path=nowhere offload.optimizer.device=nvme": "offload.optimizer.path = nowhere",
    "offload.params.path=nowhere offload.params.device=nvme parallel.zero_stage=3": "offload.params.path = nowhere",
    "offload.activations.path=nowhere offload.activations.device=nvme": "offload.activations.path = nowhere",
    "launch.interface=no-such parallel.data=2": "no-such",
}
# Keys that end a run, and the exit code.
STOPS = {
    "loss_scale.max_skipped_steps": 76,
    "train.max_skipped_steps": 76,
    "train.stop_loss": 76,
    "train.exit_duration_in_mins": 75,
}
# Keys that change the beginning of a fresh run only.
AT_THE_START = {"model.initializer_range", "model.output_layer_init_method"}
# Keys with a test of their own below.
BY_HAND = {
    "output_dir", "model.from", "model.from_ignore", "checkpoint.resume_data", "data.tokenizer.path",
    "checkpoint.async_save", "checkpoint.load.parts", "launch.distributed_timeout_minutes", "launch.ranks_per_node",
    "checkpoint.remote",  # tests/python/test_remote_checkpoints.py
    "data.cache", "data.on_bad_record", "data.workers", "data.object_cache_gb", "task", "data.chat_template",
    "data.train_on", "lora.adapter", "lora.init", "preference.loss", "preference.reference", "preference.reference_model",
    "preference.beta", "preference.label_smoothing",
    "preference.gamma", "preference.sft_weight", "preference.desirable_weight", "preference.undesirable_weight",
    "preference.center_rewards_coefficient", "distillation.teacher", "distillation.logits", "distillation.top_k", "distillation.kd_ratio", "distillation.temperature",
    "launch.max_restarts", "launch.restart_wait_seconds", "launch.restart_wait_cap_seconds",
    "launch.min_nodes", "log.rank_file_mib",
    "launch.rank_order",  # tests/app/rank_order_run_test.cpp
    "replicas.count", "replicas.min", "replicas.timeout_seconds",  # tests/app/replicas_run_test.cpp
    "offload.optimizer.update", "offload.optimizer.skip_untouched_experts",
    "train.router_replay",  # tests/app/routing_replay_run_test.cpp
    "telemetry.prometheus", "telemetry.prometheus_port", "telemetry.on_end", "telemetry.on_end_seconds",
    "telemetry.on_save", "telemetry.on_save_seconds",
}


def rows():
    """(key, what is beside it, the key's setting and what it needs) of keys.txt."""
    for line in (ROOT / "tests" / "properties" / "keys.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        beside, setting = (part.strip() for part in line.split("|"))
        for word, meaning in WORDS.items():
            beside = re.sub(rf"\b{word}\b", meaning, beside)
        yield setting.split("=")[0], tuple(beside.split()), setting


ROWS = list(rows())


@pytest.fixture(scope="module")
def changes(program):
    """{key: what another value changes}"""
    return {row["path"]: row["changes"] for row in program.json("recipe", "keys")["keys"]}


class Seen:
    """What can be seen of a run: what it computed, and the rest."""

    def __init__(self, program, folder, settings):
        arguments = ("tiny.yaml", *settings, f"output_dir={folder}")
        done = program.run("run", *arguments)
        self.code = done.returncode
        self.text = done.stdout + done.stderr
        if self.code:
            return
        steps, evals = program.metrics(folder)
        self.losses = [m["lm_loss"] for m in steps]
        self.computed = {
            "steps": [(m["lm_loss"], m["grad_norm"], m["lr"], m["consumed_tokens"], m.get("loss_scale")) for m in steps],
            "skipped": [m["skipped_steps"] for m in steps],
            "experts": [m.get("expert_tokens") for m in steps],
            "evals": [(m["step"], m["eval_loss"]) for m in evals],
            "weights": weights(program, folder),
        }
        # Rates and times are another in each run: no digit of a line counts, and of the files only names.
        printed = re.sub(r"(?m)^step \d+/.*$", "step", self.text.replace(folder, "RUN"))
        printed = re.sub(r"[0-9][0-9.,:]*(?:e[+-]?\d+)?[kMG]? ?(?:KiB|MiB|GiB|ms|s|min|h)?\b", "#", printed)
        files = sorted(str(p.relative_to(program.folder / folder)) for p in (program.folder / folder).rglob("*"))
        plan = program.ok("plan", *arguments, "--json").replace(folder, "RUN")
        self.rest = {"text": printed, "files": files, "plan": plan, "state": state(program, folder),
                     "evals": self.computed["evals"]}


def checkpoint(program, folder):
    found = sorted((program.folder / folder / "checkpoints").glob("step-*"))
    return f"{folder}/checkpoints/{found[-1].name}" if found else None


def weights(program, folder):
    """The last checkpoint's parameters, whatever the layout; None without one."""
    at = checkpoint(program, folder)
    if not at:
        return None
    return {n: t.tobytes() for n, t in program.tensors(at).items() if not n.startswith("optimizer/")}


def state(program, folder):
    """Names of all tensors of the last checkpoint: an optimizer's states."""
    at = checkpoint(program, folder)
    return sorted(program.tensors(at)) if at else None


@pytest.fixture(scope="module")
def base(program):
    """Runs without the key, each made once."""
    made = {}

    def get(beside):
        if beside not in made:
            made[beside] = Seen(program, f"base-{len(made)}", beside)
            assert made[beside].code == 0, made[beside].text
        return made[beside]

    return get


def test_every_key_has_a_row(changes):
    """Each by one way: a new key fails here until it has one, and so does a row of a key that is gone."""
    named = [key for key, _, _ in ROWS] + [setting.split("=")[0] for setting in REFUSED] + sorted(BY_HAND)
    assert sorted(named) == sorted(changes)


def test_the_same_run_twice_differs_in_nothing(program, base):
    """Else each row below would pass by itself."""
    once, again = base(()), Seen(program, "again", ())
    assert once.computed == again.computed
    assert once.rest == again.rest


@pytest.mark.parametrize("key, beside, setting", ROWS, ids=[setting for _, _, setting in ROWS])
def test_a_key_changes_what_it_says(program, base, changes, key, beside, setting):
    without = base(beside)
    given = tuple(s for s in beside if s.split("=")[0] != key)
    run = re.sub(r"[^a-z0-9]+", "-", f"with-{setting.lower()}")
    with_it = Seen(program, run, (*given, *setting.split()))
    if key in STOPS:
        assert with_it.code == STOPS[key], with_it.text
        return
    assert with_it.code == 0, with_it.text
    if changes[key] in ("function", "schedule", "data"):
        assert with_it.computed != without.computed
    elif key in AT_THE_START:
        assert with_it.losses[0] != without.losses[0]
    else:
        assert with_it.rest != without.rest
        if changes[key] == "nothing":
            n = min(len(with_it.losses), len(without.losses))
            assert n > 0 and with_it.losses[:n] == without.losses[:n]
        else:  # speed: the rounding of sums
            assert with_it.losses == pytest.approx(without.losses, rel=2e-3)


@pytest.mark.parametrize("setting", REFUSED)
def test_a_key_is_refused_by_name(program, setting):
    folder = re.sub(r"[^a-z0-9]+", "-", f"refused-{setting}")
    done = program.run("run", "tiny.yaml", *setting.split(), f"output_dir={folder}")
    assert done.returncode not in (0, 70), done.stdout + done.stderr
    assert REFUSED[setting] in done.stderr
    assert not (program.folder / folder / "metrics.jsonl").exists()


def test_output_dir(program, base):
    base(())
    program.ok("run", "tiny.yaml", "output_dir=elsewhere/run")
    assert (program.folder / "elsewhere/run/metrics.jsonl").exists()


def test_model_from_and_from_ignore(program, base):
    """The model and its weights are the folder's; a key of its config.json that is not known is refused, and taken when it
    is named."""
    base(())
    program.ok("export", "base-0", "hf")
    program.ok("run", "tiny.yaml", "~model", "model.from=hf", "output_dir=from")
    assert program.metrics("from")[0][0]["lm_loss"] < program.metrics("base-0")[0][0]["lm_loss"]
    config = program.folder / "hf" / "config.json"
    config.write_text(config.read_text().replace("{", '{"unknown_key": 7,', 1))
    refused = program.run("run", "tiny.yaml", "~model", "model.from=hf", "output_dir=from-2")
    assert refused.returncode == 64 and "unknown_key" in refused.stderr
    program.ok("run", "tiny.yaml", "~model", "model.from=hf", "model.from_ignore=[unknown_key]", "output_dir=from-2")


def test_resume_data(program):
    program.ok("run", "tiny.yaml", "output_dir=resumed")
    other = ("run", "tiny.yaml", "data.train=[{path: text-val}]", "train.train_steps=4", "output_dir=resumed")
    assert program.run(*other).returncode == 64
    program.ok(*other, "checkpoint.resume_data=restart")


def test_load_parts(program):
    """The first step is the checkpoint's next with all, and step 1 without the optimizer's states or with them."""
    program.ok("run", "tiny.yaml", "output_dir=loaded")
    steps = {}
    for parts in ("weights", "weights+optimizer", "all"):
        program.ok("run", "tiny.yaml", "train.train_steps=5", "schedule.lr_decay_steps=3", "checkpoint.load.path=loaded",
                   f"checkpoint.load.parts={parts}", f"output_dir=load-{parts}")
        steps[parts] = program.metrics(f"load-{parts}")[0]
    assert [m["step"] for m in steps["all"]] == [4, 5]
    assert steps["weights"][0]["lm_loss"] == steps["weights+optimizer"][0]["lm_loss"]
    assert steps["weights"][1]["lm_loss"] != steps["weights+optimizer"][1]["lm_loss"]


def test_async_save(program):
    """Without it training waits as long as the checkpoint is written; with it, shorter."""
    for value in ("true", "false"):
        run = f"async-{value}"
        done = program.run("run", "tiny.yaml", "model.hidden_size=128", "model.vocab_size=20000", "checkpoint.save_interval=1",
                           "train.train_steps=2", "train.eval_interval=0", f"checkpoint.async_save={value}", f"output_dir={run}")
        waited, written = map(float, re.search(r"training waited ([\d.]+) s, written in ([\d.]+) s", done.stdout + done.stderr).groups())
        assert written > 0
        assert waited < written if value == "true" else waited >= written


def test_tokenizer_path(program):
    """The golden rank file is of another tokenizer than the one that the data was made with: refused by name."""
    ranks = ROOT / "tests" / "golden" / "small.tiktoken"
    other = ("data.tokenizer.kind=gpt2", f"data.tokenizer.path={ranks}")
    done = program.run("run", "tiny.yaml", *other, "output_dir=tokenizer")
    assert done.returncode == 64 and "tokenizer" in done.stderr


def test_data_that_the_run_tokenises(program):
    """data.cache holds the token files, data.workers changes nothing else, data.on_bad_record leaves a record out."""
    source = 'data.train=[{"path":lines.jsonl}]'
    for workers in (1, 3):
        program.ok("run", "tiny.yaml", source, f"data.cache=cache-{workers}", f"data.workers={workers}", f"output_dir=tokens-{workers}")
    one, three = (sorted(p.read_bytes() for p in (program.folder / f"cache-{n}").iterdir()) for n in (1, 3))
    assert one and one == three
    assert program.metrics("tokens-1")[0][0]["lm_loss"] == program.metrics("tokens-3")[0][0]["lm_loss"]
    (program.folder / "bad.jsonl").write_text((program.folder / "lines.jsonl").read_text() + '{"text": 5}\n')
    bad = ("run", "tiny.yaml", 'data.train=[{"path":bad.jsonl}]', "data.cache=cache-bad", "output_dir=bad")
    assert program.run(*bad).returncode == 65
    program.ok(*bad, "data.on_bad_record=skip")


def test_the_bound_on_copies_of_objects(program):
    """data.object_cache_gb: an object beyond it is refused by name of the key, and one below it is tokenised."""
    with ObjectServer() as server:
        server.objects["/lines.jsonl"] = (program.folder / "lines.jsonl").read_bytes()
        run = ("run", "tiny.yaml", f'data.train=[{{"path":"{server.url}/lines.jsonl"}}]', "data.cache=copies", "output_dir=copies")
        small = program.run(*run, "data.object_cache_gb=0.000001")
        assert small.returncode == 64 and "data.object_cache_gb" in small.stderr
        program.ok(*run, "data.object_cache_gb=0.1")


def test_fine_tuning(program):
    """task: sft counts what data.train_on and the template of data.chat_template say."""
    chats = ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", '
             f'"content": "c"}}, {{"role": "assistant", "content": "{i}"}}]}}\n' for i in range(40))
    (program.folder / "chats.jsonl").write_text("".join(chats))
    template = ("{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|endoftext|>"
                "{% endgeneration %}{% else %}{{ m.content }}: {% endif %}{% endfor %}")
    (program.folder / "one.jinja").write_text(template)
    (program.folder / "two.jinja").write_text(template.replace(": ", "? "))
    losses = set()
    for i, (name, train_on) in enumerate([("one", "assistant"), ("two", "assistant"), ("one", "last_turn"), ("one", "all")]):
        program.ok("run", "tiny.yaml", "task=sft", 'data.train=[{"path":chats.jsonl}]', "~data.eval", "train.eval_interval=0",
                   "data.cache=chat", f"data.chat_template={name}.jinja", f"data.train_on={train_on}", f"output_dir=sft-{i}")
        losses.add(program.metrics(f"sft-{i}")[0][0]["lm_loss"])
    assert len(losses) == 4


def test_preference(program):
    """Each key of task: dpo changes the losses."""
    pairs = (f'{{"prompt": "{i}:", "chosen": " {i + 1} is next", "rejected": " {i * i}"}}\n' for i in range(40))
    (program.folder / "pairs.jsonl").write_text("".join(pairs))
    program.ok("run", "tiny.yaml", "seed=9", "output_dir=other")
    losses = set()
    for i, settings in enumerate([(), ("loss=ipo",), ("beta=0.5",), ("label_smoothing=0.2",), ("sft_weight=1",), ("loss=simpo",),
                                  ("loss=simpo", "gamma=0.5"), ("reference=resident", "reference_model=other")]):
        program.ok("run", "tiny.yaml", "task=dpo", 'data.train=[{"path":pairs.jsonl}]', "~data.eval", "train.eval_interval=0",
                   "data.cache=pairs", f"output_dir=dpo-{i}", *(f"preference.{s}" for s in settings))
        losses.add(program.metrics(f"dpo-{i}")[0][-1]["lm_loss"])
    assert len(losses) == 8


def test_distillation(program):
    """Each key of distillation changes the losses."""
    program.ok("run", "tiny.yaml", "seed=9", "output_dir=teacher")
    losses = set()
    for i, settings in enumerate([(), ("teacher=teacher",), ("teacher=teacher", "kd_ratio=0.9"),
                                  ("teacher=teacher", "temperature=2")]):
        program.ok("run", "tiny.yaml", f"output_dir=student-{i}", *(f"distillation.{s}" for s in settings))
        losses.add(program.metrics(f"student-{i}")[0][-1]["lm_loss"])
    tiny = (program.folder / "tiny.yaml").read_text()
    for k in 2, 5:
        (program.folder / "recorded.yaml").write_text(tiny + f"\ndistillation: {{logits: top-{k}, top_k: {k}}}\n")
        program.ok("eval", "teacher", "--record-logits", "recorded.yaml")
        program.ok("run", "recorded.yaml", f"output_dir=recorded-{k}")
        losses.add(program.metrics(f"recorded-{k}")[0][-1]["lm_loss"])
    assert len(losses) == 6


def test_scores_of_pairs(program):
    """The key of task: reward changes the losses."""
    pairs = (f'{{"prompt": "{i}:", "chosen": " {i + 1} is next", "rejected": " {i * i}"}}\n' for i in range(40))
    (program.folder / "pairs.jsonl").write_text("".join(pairs))
    losses = set()
    for i, settings in enumerate([(), ("center_rewards_coefficient=0.5",)]):
        program.ok("run", "tiny.yaml", "task=reward", 'data.train=[{"path":pairs.jsonl}]', "~data.eval", "train.eval_interval=0",
                   "data.cache=scored", f"output_dir=reward-{i}", *(f"preference.{s}" for s in settings))
        losses.add(program.metrics(f"reward-{i}")[0][-1]["lm_loss"])
    assert len(losses) == 2


def test_labelled_texts(program):
    """Each key of task: kto changes the losses."""
    rows = (f'{{"prompt": "{i}:", "completion": " {i + i % 2} is next", "label": {"false" if i % 2 else "true"}}}\n'
            for i in range(40))
    (program.folder / "labelled.jsonl").write_text("".join(rows))
    losses = set()
    for i, settings in enumerate([(), ("beta=0.5",), ("desirable_weight=0.5",), ("undesirable_weight=0.5",)]):
        program.ok("run", "tiny.yaml", "task=kto", 'data.train=[{"path":labelled.jsonl}]', "~data.eval", "train.eval_interval=0",
                   "data.cache=labelled", f"output_dir=kto-{i}", *(f"preference.{s}" for s in settings))
        losses.add(program.metrics(f"kto-{i}")[0][-1]["lm_loss"])
    assert len(losses) == 4


def test_updates_of_states_in_files(program, base):
    """On the CPU its cores update whatever the key says; on a GPU: tests/cuda/run_test.cpp."""
    files = ("offload.optimizer.device=nvme", "offload.optimizer.path=.")
    for value in ("cpu", "auto"):
        host = Seen(program, f"update-{value}", (*files, f"offload.optimizer.update={value}"))
        assert host.code == 0, host.text
        assert host.computed == base(files).computed


def test_experts_without_tokens_are_not_updated(program):
    experts = ("model.architecture=mixtral", "model.moe.num_experts=64", "model.moe.top_k=1",
               "offload.optimizer.device=nvme", "offload.optimizer.path=.")
    losses = []
    for value in ("false", "true"):
        program.ok("run", "tiny.yaml", *experts, f"offload.optimizer.skip_untouched_experts={value}",
                   f"output_dir=untouched-{value}")
        steps = program.metrics(f"untouched-{value}")[0]
        assert any(step.get("untouched_experts", 0) > 0 for step in steps) == (value == "true")
        losses.append([step["lm_loss"] for step in steps])
    assert losses[0][0] == losses[1][0] and losses[0] != losses[1]


def test_ranks_per_node(program):
    one, two = (program.json("plan", "tiny.yaml", "parallel.data=2", f"launch.ranks_per_node={n}") for n in (1, 2))
    assert one != two


def test_restarts(program):
    """Ranks are started again as often as max_restarts says, after waits that the other two keys say."""
    def waits(*settings):
        job = subprocess.run([BINARY, "run", "tiny.yaml", "parallel.data=2", "checkpoint.resume=never", *settings],
                             cwd=program.folder, env=dict(os.environ, LTRAIN_FAULT="train.step:1:2:kill"),
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120)
        assert job.returncode in (71, 76), job.stdout
        return re.findall(r"restart \d of \d in (\S+) s", job.stdout)

    assert waits() == []
    assert waits("launch.max_restarts=1", "launch.restart_wait_seconds=0.1") == ["0.1"]
    assert waits("launch.max_restarts=3", "launch.restart_wait_seconds=0.1") == ["0.1", "0.2"]
    assert waits("launch.max_restarts=3", "launch.restart_wait_seconds=0.1",
                 "launch.restart_wait_cap_seconds=0.15") == ["0.1", "0.15"]


def test_min_nodes(program):
    """More nodes than the job has are refused; tests/app/restart_nodes_test.cpp goes on with fewer."""
    job = program.run("run", "tiny.yaml", "launch.max_restarts=1", "launch.min_nodes=2", "output_dir=nodes")
    assert job.returncode == 64 and "launch.min_nodes = 2: the job has 1 node; nearest valid value: 1" in job.stdout + job.stderr


def test_log_size(program):
    """A log that has its size becomes rank-00000.log.1; 0 lets it grow."""
    for mib, files in (("0.0005", 2), ("0", 1), ("100", 1)):
        program.ok("run", "tiny.yaml", f"log.rank_file_mib={mib}", f"output_dir=log{mib}")
        logs = sorted((program.folder / f"log{mib}" / "logs").glob("rank-00000.log*"))
        assert len(logs) == files, logs
        assert all(log.stat().st_size <= 1500 for log in logs) or mib != "0.0005"


def test_telemetry(program):
    """The file is written, the command gets the end, and is killed after its time."""
    program.ok("run", "tiny.yaml", "telemetry.prometheus=tiny.prom", "telemetry.on_end=cat > end.json", "output_dir=told")
    assert "ltrain_iteration{" in (program.folder / "tiny.prom").read_text()
    assert json.loads((program.folder / "end.json").read_text())["exit_code"] == 0
    begin = time.monotonic()
    late = program.run("run", "tiny.yaml", "telemetry.on_end=sleep 300", "telemetry.on_end_seconds=0.2", "output_dir=late")
    assert late.returncode == 0 and "did not end in 0.2 s" in late.stderr
    assert time.monotonic() - begin < 60


def test_prometheus_port(program):
    """A client over HTTP reads the text of the file, which the run goes on to write."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    settings = (f"telemetry.prometheus_port={port}", "telemetry.prometheus=page.prom", "train.train_steps=1000000", "train.eval_interval=0", "output_dir=page")
    job = subprocess.Popen([BINARY, "run", "tiny.yaml", *settings], cwd=program.folder,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    page = ""
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                    page = answer.read().decode()
            except OSError:  # not yet
                pass
            if page:
                break
            time.sleep(0.1)
    finally:
        job.terminate()
        assert job.wait(60) == 75
    names = lambda text: re.findall(r"^# TYPE (\S+)", text, re.M)
    assert names(page) == names((program.folder / "page.prom").read_text())
    assert "ltrain_iteration{" in page


def test_on_save(program):
    """The command gets path and step of each checkpoint, and is killed after its time."""
    program.ok("run", "tiny.yaml", "telemetry.on_save=echo $1 > of-$2", "output_dir=saved")
    last = sorted((program.folder / "saved" / "checkpoints").glob("step-*"))[-1].name
    assert (program.folder / f"of-{int(last[5:])}").read_text().strip() == f"saved/checkpoints/{last}"
    late = program.run("run", "tiny.yaml", "telemetry.on_save=sleep 300", "telemetry.on_save_seconds=0.2", "output_dir=slow")
    assert late.returncode == 0 and "did not end in 0.2 s" in late.stderr


def test_timeout(program):
    """A rank that is stopped ends the job after that time."""
    settings = ("parallel.data=2", "train.train_steps=1000000", "launch.distributed_timeout_minutes=0.05")
    job = subprocess.Popen([BINARY, "run", "tiny.yaml", *settings, "output_dir=hung"], cwd=program.folder,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = program.folder / "hung" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and job.poll() is None:
        time.sleep(0.05)
    ranks = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    assert len(ranks) == 2
    os.kill(int(ranks[1]), signal.SIGSTOP)
    stopped = time.monotonic()
    text, _ = job.communicate(timeout=60)
    assert job.returncode not in (0, None)
    assert "rank 1" in text
    assert 3 <= time.monotonic() - stopped < 30
