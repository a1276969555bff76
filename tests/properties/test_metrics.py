"""Each name of docs/metrics.md is what it says there: computed here from the recipe, the checkpoints, the plan and the
other commands, and compared with what the run wrote."""
import math
import time

import pytest
from conftest import ROOT

STEPS, BATCH, SEQ, RANKS = 4, 8, 32, 2
BASE = ("run", "tiny.yaml", f"train.global_batch_size={BATCH}", f"train.train_steps={STEPS}", "checkpoint.save_interval=1",
        "checkpoint.keep_latest=20", f"parallel.data={RANKS}")
MOE = ("model.architecture=mixtral", "model.moe.num_experts=4", "model.moe.top_k=2")


def close(value, relative=1e-9):
    return pytest.approx(value, rel=relative)


@pytest.fixture(scope="module")
def dense(program):
    program.ok(*BASE, "schedule.lr_warmup_steps=2")
    return program.metrics()


def test_every_name_is_documented(dense, program):
    text = (ROOT / "docs" / "metrics.md").read_text()
    program.ok(*BASE, *MOE, "model.moe.capacity_factor=1.0", "model.moe.balance.kind=switch", "parallel.expert=2",
               "precision=fp16", "output_dir=names")
    program.ok(*BASE, *MOE, "model.moe.row_budget=1", "parallel.expert=2", "output_dir=slices")
    names = set()
    program.ok(*BASE, "data.eval=[{path: text-val, name: held}]", "output_dir=sets")
    for run in ("run", "names", "sets", "slices"):
        for rows in program.metrics(run):
            names.update(key for row in rows for key in row)
    assert {"lm_loss", "eval_loss", "eval_set", "eval_bits_per_byte", "expert_tokens", "loss_scale", "exposed_comm_ms/ep",
            "rows_beyond_budget", "slices_beyond_budget", "slices_beyond_budget_by_layer"} <= names
    assert not [name for name in names if f"`{name}`" not in text]


def test_counts(dense):
    steps, evals = dense
    assert [m["step"] for m in steps] == [1, 2, 3, 4]
    assert [m["step"] for m in evals] == [3, 4]  # and one at the end
    assert [m["consumed_samples"] for m in steps] == [BATCH * i for i in (1, 2, 3, 4)]
    assert [m["consumed_tokens"] for m in steps] == [BATCH * SEQ * i for i in (1, 2, 3, 4)]
    assert all(m["skipped_steps"] == 0 for m in steps)


def test_learning_rate(dense):
    """Two steps of warm-up, then half a cosine to 0 over the rest: Megatron's formula."""
    steps, _ = dense
    wanted = [1e-3 / 2, 1e-3] + [1e-3 * 0.5 * (1 + math.cos(math.pi * i / (STEPS - 2))) for i in (1, 2)]
    assert [m["lr"] for m in steps] == [pytest.approx(lr, rel=1e-9, abs=1e-12) for lr in wanted]


def test_rates(dense, program):
    """tokens/s and FLOP/s are the step's over its time; parts of the time are not longer than it."""
    hidden, ffn, layers, vocab = 16, 32, 2, 257
    matmul_weights = layers * (4 * hidden * hidden + 3 * hidden * ffn) + hidden * vocab
    tokens = BATCH * SEQ
    flops = 6 * tokens * matmul_weights + 12 * layers * hidden * BATCH * SEQ * (SEQ + 1) / 2
    steps, _ = dense
    peaks = set()
    for m in steps:
        seconds = m["step_time_ms"] / 1e3
        assert m["tokens_per_sec"] == close(tokens / seconds)
        assert m["tokens_per_sec_per_gpu"] == close(tokens / seconds / RANKS)
        assert m["tflops_per_gpu"] == close(flops / seconds / 1e12 / RANKS)
        peaks.add(round(m["tflops_per_gpu"] / m["mfu"], 6))
        assert 0 <= m["data_time_ms"] <= m["step_time_ms"]
        assert m["data_wait_ms"] == 0  # no data.shuffle_window
        assert 0 <= m["exposed_comm_ms/dp"] <= m["step_time_ms"]
        assert not {"exposed_comm_ms/tp", "exposed_comm_ms/pp", "exposed_offload_ms", "loss_scale"} & set(m)
    assert len(peaks) == 1  # MFU is over one peak, of TFLOP/s of a rank
    assert 1e-3 < peaks.pop() < 1e3


def test_time_is_wall_time(program):
    """The steps fit between the start and the end of the program."""


    begin = time.monotonic()
    now = time.time()
    program.ok(*BASE, "output_dir=timed")
    all_of_it = time.monotonic() - begin
    steps, _ = program.metrics("timed")
    assert 0 < sum(m["step_time_ms"] for m in steps) / 1e3 < all_of_it
    assert now <= steps[0]["time"] <= steps[-1]["time"] <= time.time()


def test_goodput(program):
    """The steps' time over all time from the first one's begin, by the report; a second start makes it lower."""
    program.ok(*BASE, "output_dir=parts", "train.stop_step=2")
    time.sleep(1)
    program.ok(*BASE, "output_dir=parts")
    steps, _ = program.metrics("parts")
    seconds = [m["step_time_ms"] / 1e3 for m in steps]
    whole = steps[-1]["time"] - steps[0]["time"] + seconds[0]
    assert whole > 1
    assert program.json("report", "parts")["goodput"] == pytest.approx(sum(seconds) / whole, rel=1e-6)
    assert "goodput " in program.ok("report", "parts")


def test_memory_is_that_of_the_plan(dense, program):
    plan = program.json("plan", *BASE[1:])
    planned = plan["ranks"][0]["memory_bytes"]["arena"]["total"]
    steps, _ = dense
    for m in steps:
        assert m["mem_plan_gib"] * 2**30 == close(planned)
        assert m["mem_peak_gib"] <= m["mem_plan_gib"]
    assert steps[-1]["mem_peak_gib"] > 0.9 * steps[-1]["mem_plan_gib"]


def test_losses_are_those_of_another_command(dense, program):
    """eval_loss and `ltrain eval` of the same weights agree, and perplexity is its exponential. Of weights that do not
    change, the mean of lm_loss over the steps is the loss over their data."""
    _, evals = dense
    there = program.json("eval", "run/checkpoints/step-00000003", "--samples", str(BATCH), "--threads", "1")["sets"][0]
    assert evals[0]["eval_loss"] == close(there["loss"], 1e-6)
    assert evals[0]["eval_perplexity"] == close(math.exp(evals[0]["eval_loss"]))
    # Each target of the byte tokenizer is a byte, except ends of documents: at most one here.
    bits = evals[0]["eval_loss"] / math.log(2)
    assert evals[0]["eval_bits_per_byte"] in (close(bits), close(bits * there["tokens"] / (there["tokens"] - 1)))

    samples = program.json("eval", "run/checkpoints/step-00000003", "--data", "text-train", "--threads", "1")["sets"][0]["samples"]
    steps_of_epoch = samples // BATCH
    program.ok(*BASE[:2], "optimizer.kind=sgd", "optimizer.lr=1e-30", "optimizer.weight_decay=0", "output_dir=still",
               f"train.global_batch_size={BATCH}", f"train.train_steps={steps_of_epoch}", "train.eval_interval=0")
    still, _ = program.metrics("still")
    whole = program.json("eval", "still", "--data", "text-train", "--threads", "1", "--samples",
                         str(steps_of_epoch * BATCH))["sets"][0]
    # An epoch's samples in another order; those that do not fill a batch are a part of 1 / steps_of_epoch at most.
    mean = sum(m["lm_loss"] for m in still) / len(still)
    assert mean == close(whole["loss"], 1e-3)
    assert len(still) > 50


def test_gradient_norm_is_that_of_the_update(program):
    """Plain SGD moves the weights by lr times the gradient: the distance between two checkpoints says its norm."""
    rate = 1e-2
    program.ok(*BASE, "parallel.data=1", "optimizer.kind=sgd", "optimizer.sgd_momentum=0", f"optimizer.lr={rate}",
               "optimizer.weight_decay=0", "schedule.lr_decay_style=constant", "train.clip_grad=0", "output_dir=sgd")
    steps, _ = program.metrics("sgd")
    for step in (2, 3, 4):
        before = program.tensors(f"sgd/checkpoints/step-{step - 1:08d}")
        after = program.tensors(f"sgd/checkpoints/step-{step:08d}")
        moved = math.sqrt(sum((a - b)**2 for name in before if not name.startswith("optimizer/")
                              for a, b in zip(after[name], before[name])))
        assert steps[step - 1]["grad_norm"] == close(moved / rate, 1e-4)


def test_skipped_steps_are_counted(program):
    program.ok(*BASE, "train.skip_grad_norm=1e-6", "output_dir=skipped")
    steps, _ = program.metrics("skipped")
    assert [m["skipped_steps"] for m in steps] == [1, 2, 3, 4]
    first = program.tensors("skipped/checkpoints/step-00000001")
    assert first == program.tensors("skipped/checkpoints/step-00000004")  # and none of them made an update


def test_loss_scale_of_fp16_halves_at_an_overflow(program):
    program.ok(*BASE, "precision=fp16", "loss_scale.initial=1e9", "loss_scale.hysteresis=1", "output_dir=fp16")
    steps, _ = program.metrics("fp16")
    scale = skipped = 0
    for m in steps:
        assert m["loss_scale"] == (1e9 if not scale else scale / 2 if m["skipped_steps"] > skipped else scale) or not scale
        scale, skipped = m["loss_scale"], m["skipped_steps"]
    assert skipped > 0


def test_rows_beyond_a_budget(program):
    """With one micro-batch of each rank a budget of one share leaves what the busier rank gets above half of all rows,
    of each layer in a further slice, unless both get as many."""
    program.ok(*BASE, *MOE, "parallel.expert=2", "train.micro_batch_size=4", "model.moe.row_budget=1", "output_dir=beyond")
    for m in program.metrics("beyond")[0]:
        rows = BATCH * SEQ * 2
        beyond = [max(sum(layer[:2]), sum(layer[2:])) - rows / 2 for layer in m["expert_tokens"]]
        assert m["rows_beyond_budget"] == close(sum(beyond) / (2 * rows), 1e-6)
        assert m["slices_beyond_budget_by_layer"] == [1 if n else 0 for n in beyond]
        assert m["slices_beyond_budget"] == close(sum(m["slices_beyond_budget_by_layer"]) / 2, 1e-6)


def test_experts(program):
    """Choices are top_k a token and layer; a capacity drops the rest; entropy is that of the shares."""
    program.ok(*BASE, *MOE, "output_dir=moe")
    program.ok(*BASE, *MOE, "model.moe.capacity_factor=0.25", "output_dir=drops")
    program.ok(*BASE, *MOE, "model.moe.router.selection=top_p", "model.moe.router.top_p=0.26", "output_dir=some")
    for m in program.metrics("some")[0]:
        mean = sum(map(sum, m["expert_tokens"])) / 2 / (BATCH * SEQ)
        assert 1 < mean < 2 and m["experts_per_token"] == close(mean, 1e-6)
    for run, capacity in (("moe", None), ("drops", 0.25)):
        for m in program.metrics(run)[0]:
            choices = BATCH * SEQ * 2
            assert [sum(layer) for layer in m["expert_tokens"]] == [choices] * 2
            entropy = []
            for layer in m["expert_tokens"]:
                shares = [n / choices for n in layer]
                entropy.append(-sum(s * math.log(s) for s in shares if s > 0) / math.log(4))
            assert m["experts_per_token"] == close(2, 1e-6)
            assert m["expert_load_entropy"] == close(sum(entropy) / 2, 1e-6)
            if capacity is None:
                assert m.get("drop_rate", 0) == 0
            else:
                by_layer = m["drop_rate_by_layer"]
                assert m["drop_rate"] == close(sum(by_layer) / 2, 1e-6)
                assert all(rate >= 1 - capacity - 1e-9 for rate in by_layer)  # no expert computes more than its share
