"""checkpoint.remote: checkpoints in a bucket, by a server of S3 on this machine with its faults."""
import json
import random
import shutil
import signal

import pytest
from object_server import ObjectServer
from test_objects import Program

RECIPE = """
name: remote
output_dir: outputs/remote
model: {architecture: llama, vocab_size: 260, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
        num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 64}
data: {train: [{path: text.txt}], seq_length: 32, tokenizer: {kind: byte}}
train: {global_batch_size: 4, micro_batch_size: 2, train_steps: 6, log_interval: 1}
checkpoint: {save_interval: 2, async_save: false, remote: s3://bucket/runs/one}
device: cpu
"""
PREFIX = "/bucket/runs/one/"


class Run(Program):
    def train(self, *settings, code=0):
        return self.run("run", "remote.yaml", *settings, code=code)

    def losses(self, folder="outputs/remote"):
        rows = [json.loads(line) for line in (self.folder / folder / "metrics.jsonl").read_text().splitlines()]
        return {row["step"]: row["lm_loss"] for row in rows if "lm_loss" in row}

    def new_machine(self, folder="outputs/remote"):
        shutil.rmtree(self.folder / folder)


@pytest.fixture
def server():
    with ObjectServer() as s:
        s.objects["/bucket/other"] = b"of somebody else"
        s.page = 1000
        yield s
        assert s.objects["/bucket/other"] == b"of somebody else"


@pytest.fixture
def program(tmp_path, server):
    generator = random.Random(1)
    (tmp_path / "text.txt").write_text(" ".join(str(generator.randrange(1000)) for _ in range(3000)))
    (tmp_path / "remote.yaml").write_text(RECIPE)
    return Run(tmp_path, server)


def steps(server, file="COMMIT"):
    return sorted(k[len(PREFIX):].split("/")[0] for k in server.objects if k.startswith(PREFIX) and k.endswith("/" + file))


def local_files(program, step, folder="outputs/remote"):
    return {p.name: p.read_bytes() for p in (program.folder / folder / "checkpoints" / step).iterdir()}


def remote_files(server, step):
    return {k[len(PREFIX + step) + 1:]: v for k, v in server.objects.items() if k.startswith(f"{PREFIX}{step}/")}


def test_a_run_on_a_new_machine_goes_on_from_the_bucket_as_if_nothing_had_happened(server, program):
    program.train("output_dir=whole", "checkpoint.remote=s3://bucket/runs/whole")
    program.train("--steps", "2")
    text = program.train("--steps", "2")
    assert "uploaded s3://bucket/runs/one/step-00000004" in text
    assert steps(server) == ["step-00000002", "step-00000004"]
    assert remote_files(server, "step-00000004") == local_files(program, "step-00000004")
    program.new_machine()
    # Another number of ranks: each downloads a share of the files.
    text = program.train("parallel.data=2", "parallel.zero_stage=1")
    assert "downloading s3://bucket/runs/one/step-00000004" in text and "resuming from" in text
    assert "taken over from a run on" in text
    whole, after = program.losses("whole"), program.losses()
    assert sorted(after) == [5, 6] and all(abs(after[s] - whole[s]) < 1e-5 for s in after)
    assert steps(server) == ["step-00000004", "step-00000006"]  # rotation keeps two, there and here
    server.objects[PREFIX + "step-00000004/KEEP"] = b""
    program.new_machine()
    text = program.train("train.train_steps=8")
    assert sorted(program.losses()) == [7, 8] and "resuming from" in text
    assert steps(server) == ["step-00000004", "step-00000006", "step-00000008"]


def test_files_in_parts_survive_faults_and_arrive_whole(server, program):
    big = ("model.hidden_size=384", "model.intermediate_size=1024", "train.train_steps=1")
    server.write_faults = [None, None, "503", "drop", None, "500"]
    program.train(*big)
    assert remote_files(server, "step-00000001") == local_files(program, "step-00000001")
    assert any("partNumber=2" in r[1] for r in server.requests) and not server.uploads
    # The answer to the end of an upload is lost: the object is there. Or it says an error after its status.
    server.end_faults = ["lost", "late"]
    program.train(*big[:2], "train.train_steps=2")
    program.train(*big[:2], "train.train_steps=3")
    assert not server.end_faults and steps(server) == ["step-00000002", "step-00000003"]
    assert remote_files(server, "step-00000002") == local_files(program, "step-00000002")
    assert remote_files(server, "step-00000003") == local_files(program, "step-00000003")
    program.new_machine()
    program.train(*big[:2], "train.train_steps=4")
    assert sorted(program.losses()) == [4]


def test_an_upload_without_commit_counts_for_nothing_and_is_removed_by_the_next(server, program):
    program.train("train.train_steps=2")
    program.environment["LTRAIN_FAULT"] = "remote.before_commit:0:1:kill"
    program.train("train.train_steps=4", code=71)
    del program.environment["LTRAIN_FAULT"]
    assert steps(server) == ["step-00000002"] and remote_files(server, "step-00000004")
    program.new_machine()
    assert "step-00000004: no COMMIT" in program.train()
    assert sorted(program.losses()) == [3, 4, 5, 6]
    assert "step-00000004" in steps(server)


def test_a_damaged_copy_is_not_taken_and_a_damaged_checkpoint_is_replaced(server, program):
    program.train("train.train_steps=2")
    program.train("train.train_steps=4")
    shard = next(k for k in server.objects if k.startswith(PREFIX + "step-00000004/") and k.endswith(".safetensors"))
    good = server.objects[shard]
    server.objects[shard] = good[:-1] + bytes([good[-1] ^ 1])
    program.new_machine()
    text = program.train("train.train_steps=3")
    assert "the copy is damaged" in text and sorted(program.losses()) == [3]
    # The bucket has step 4 and this folder, whose own is damaged: the copy takes its place.
    server.objects[shard] = good
    program.new_machine()
    program.train("train.train_steps=4", "checkpoint.save_at_end=false")
    local = next((program.folder / "outputs/remote/checkpoints/step-00000004").glob("*.safetensors"))
    local.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    text = program.train("train.train_steps=5")
    assert "downloading s3://bucket/runs/one/step-00000004" in text and sorted(program.losses())[-1] == 5
    assert (program.folder / "outputs/remote/checkpoints/damaged-step-00000004").exists()


def test_a_run_that_goes_back_supersedes_later_copies_and_overwrites_none(server, program):
    for last in (2, 4, 6):
        program.train(f"train.train_steps={last}", "checkpoint.keep_latest=0")
    before = remote_files(server, "step-00000004")
    program.train("checkpoint.resume=outputs/remote/checkpoints/step-00000002", "train.train_steps=4", "optimizer.lr=1e-4",
                  "checkpoint.keep_latest=0")
    assert steps(server) == ["step-00000002", "step-00000004-2"]
    assert steps(server, "SUPERSEDED") == ["step-00000004", "step-00000006"]
    now = remote_files(server, "step-00000004")
    assert now.pop("SUPERSEDED") == before.pop("COMMIT") and now == before
    program.new_machine()
    assert "downloading s3://bucket/runs/one/step-00000004-2" in program.train("optimizer.lr=1e-4")
    assert sorted(program.losses()) == [5, 6]


def test_of_two_runs_with_one_url_the_later_one_goes_on(server, program):
    program.train("train.train_steps=2")
    first = program.start("run", "remote.yaml", "train.train_steps=1000000", "checkpoint.save_interval=0", "output_dir=first",
                          "checkpoint.resume=never", "train.log_interval=100000")
    try:
        while "memory a rank" not in first.stdout.readline():  # it has taken the URL
            assert first.poll() is None
        program.train("output_dir=second", "train.train_steps=4")
        first.send_signal(signal.SIGINT)  # it saves, and may not upload
        text = first.communicate(timeout=120)[0]
    finally:
        first.kill()
    assert first.returncode == 73, text
    assert "another run has taken this URL" in text and steps(server) == ["step-00000002", "step-00000004"]


def test_the_plan_counts_the_parts_that_an_upload_holds(server, program):
    assert "uploads of checkpoints" in program.run("plan", "remote.yaml")
    assert "uploads of checkpoints" not in program.run("plan", "remote.yaml", "~checkpoint.remote")


def test_what_cannot_work_is_refused_before_the_first_step(server, program):
    refused = {"s3://bucket": "must be a prefix", "https://host/x": "must be a prefix", "here": "checkpoint.remote"}
    for url, said in refused.items():
        assert said in program.train(f"checkpoint.remote={url}", code=64)
    text = program.train("checkpoint.remote=s3://missing/run", code=65)
    assert "NoSuchBucket" in text
    program.environment["AWS_SECRET_ACCESS_KEY"] = "wrong"
    assert "SignatureDoesNotMatch" in program.train(code=65)
    assert not (program.folder / "outputs/remote/metrics.jsonl").exists()


def test_uploads_that_fail_are_said_and_the_last_one_ends_the_run_with_an_error(server, program):
    server.write_faults = [None, "denied"]  # OWNER, then the first file
    text = program.train("train.train_steps=3")
    assert "WARNING: the checkpoint of step 2 was not uploaded; it is complete in" in text
    assert "s3:PutObject" in text and steps(server) == ["step-00000003"]
    server.write_faults = [None] + ["denied"] * 50
    text = program.train("train.train_steps=8", code=73)
    assert "the last checkpoint, of step 8, could not be uploaded" in text


def test_frozen_weights_are_copied_within_the_bucket(server, program):
    program.train("train.train_steps=1", "checkpoint.remote=s3://bucket/runs/base", "output_dir=base")
    lora = ("lora.r=2", "checkpoint.load.path=base", "checkpoint.resume=auto")
    program.train(*lora, "train.train_steps=2")
    program.train(*lora, "train.train_steps=4")
    copies = [r for r in server.requests if any(h.lower() == "x-amz-copy-source" for h in r[2])]
    assert len(copies) == 1 and "step-00000004" in copies[0][1]
    assert remote_files(server, "step-00000004") == local_files(program, "step-00000004")
