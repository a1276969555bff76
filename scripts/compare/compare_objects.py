#!/usr/bin/env python3
"""Compares reading from an object store with boto3, on moto's S3 server: bytes, keys, and time.

Usage: scripts/compare.sh objects [--objects N] [--megabytes M]
N (40) objects with odd keys and sizes, uploaded by boto3, some in parts, are listed and downloaded by `ltrain data build`
and by boto3: the same tokens as of local files. M (256): size of one object whose download is timed. A run uploads a
checkpoint, whose files boto3 compares, and goes on from the copy. Exits with 1 at a difference.
"""
# build: ltrain
# packages: moto[server,s3] boto3
import argparse
import io
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

import boto3
from boto3.s3.transfer import TransferConfig
from moto.server import ThreadedMotoServer

LTRAIN = os.environ.get("LTRAIN_BINARY", "build/ltrain")
RUN = """
name: run
output_dir: {folder}/run
model: {{architecture: llama, vocab_size: 257, hidden_size: 512, intermediate_size: 1024, num_hidden_layers: 2,
        num_attention_heads: 2, max_position_embeddings: 64}}
data: {{train: [{{path: {folder}/large.txt}}], seq_length: 32}}
train: {{global_batch_size: 2, micro_batch_size: 2, train_steps: 2, log_interval: 1}}
checkpoint: {{remote: "s3://bucket/run"}}
device: cpu
"""
PARTS = "abcdefghij0123456789 +=&%~!'()[]{}@$,;:é漢-_.#"


def build(source, output, environment):
    begin = time.monotonic()
    subprocess.run([LTRAIN, "data", "build", "--tokenizer", "byte", "--input-format", "text", "--input", source, "--output",
                    str(output), "--force", "-q"], check=True, env=environment)
    return time.monotonic() - begin, pathlib.Path(f"{output}.bin").read_bytes()


def checkpoints_are_the_same(client, folder, environment):
    """Whether boto3 finds the files of a checkpoint in its copy, and a run goes on from the copy alone."""
    recipe = folder / "run.yaml"
    recipe.write_text(RUN.format(folder=folder))
    run = lambda *settings: subprocess.run([LTRAIN, "run", str(recipe), *settings], check=True, env=environment,
                                           capture_output=True, text=True)
    run("train.train_steps=2")
    step = folder / "run/checkpoints/step-00000002"
    listed = client.list_objects_v2(Bucket="bucket", Prefix="run/step-")["Contents"]
    names = [o["Key"].removeprefix("run/step-00000002/") for o in listed]
    same = sorted(names) == sorted(p.name for p in step.iterdir()) and all(
        client.get_object(Bucket="bucket", Key=f"run/step-00000002/{n}")["Body"].read() == (step / n).read_bytes() for n in names)
    size = sum(p.stat().st_size for p in step.iterdir())
    shutil.rmtree(folder / "run")
    said = run("train.train_steps=3").stderr
    same = same and "downloading s3://bucket/run/step-00000002" in said and "step 3/3" in said
    print(f"a checkpoint of {size / 1e6:.0f} MB, and a run that goes on from its copy: {'the same' if same else 'DIFFERENT'}")
    return same


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--objects", type=int, default=40)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {**os.environ, "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
                       "AWS_REGION": "us-east-1", "LTRAIN_CACHE_DIR": str(folder / "cache"), "HOME": name}
        client = boto3.client("s3", endpoint_url=url, aws_access_key_id="key", aws_secret_access_key="secret",
                              region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        everything = {}
        for i in range(options.objects):
            key = f"data/{i:03d}" + "".join(generator.choice(PARTS) for _ in range(generator.randrange(1, 20)))
            size = generator.choice([1, 100, 5000, 300_000, 12 << 20])
            body = bytes(generator.choice(b"abc \n") for _ in range(min(size, 5000))) * max(1, size // 5000)
            everything[key] = body
            client.upload_fileobj(io.BytesIO(body), "bucket", key,
                                  Config=TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=5 << 20))
        local = folder / "local"
        local.mkdir()
        for i, key in enumerate(sorted(everything, key=str.encode)):
            (local / f"{i:05d}.txt").write_bytes(everything[key])
        remote = build("s3://bucket/data", folder / "remote", environment)[1]
        same = remote == build(str(local), folder / "there", environment)[1]
        print(f"{len(everything)} objects, {sum(map(len, everything.values())) / 1e6:.1f} MB, keys of all characters: "
              f"{'the tokens of local files' if same else 'DIFFERENT'}")
        body = generator.randbytes(1 << 20).hex().encode()[:1 << 20] * options.megabytes
        client.upload_fileobj(io.BytesIO(body), "bucket", "large/large.txt")
        begin = time.monotonic()
        client.download_file("bucket", "large/large.txt", str(folder / "large.txt"))
        boto = time.monotonic() - begin
        cold = build("s3://bucket/large", folder / "large", environment)[0]
        warm = build("s3://bucket/large", folder / "large", environment)[0]
        print(f"one object of {options.megabytes} MiB: boto3 download_file {boto:.2f} s; ltrain {cold - warm:.2f} s more than "
              f"the {warm:.2f} s of a build from its copy")
        same = checkpoints_are_the_same(client, folder, environment) and same
    server.stop()
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
