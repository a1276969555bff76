#!/usr/bin/env python3
"""Runs that `ltrain report` writes for Weights & Biases and MLflow, read by their own clients: `wandb sync` uploads to a
server of this script on loopback, MLflow's client reads its file store. All numbers must be those of metrics.jsonl."""
# build: ltrain
# packages: wandb==0.31.0 mlflow-skinny==3.17.2
import argparse
import gzip
import http.server
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading

import measure


class Server(http.server.BaseHTTPRequestHandler):
    """What the client needs of W&B's server to upload a run; `history` has the lines that it sent."""

    protocol_version = "HTTP/1.1"
    history, bucket = {}, {}

    def log_message(self, *_):
        pass

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def reply(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply({})

    def do_PUT(self):
        self.body()
        self.reply({})

    def do_POST(self):
        body = self.body()
        sent = json.loads(body) if body.startswith(b"{") else {}
        if self.path.endswith("/file_stream"):
            lines = sent.get("files", {}).get("wandb-history.jsonl", {})
            for i, line in enumerate(lines.get("content", [])):
                Server.history[lines["offset"] + i] = json.loads(line)
            return self.reply({})
        query, given = sent.get("query", ""), sent.get("variables", {})
        if "upsertBucket" in query:
            Server.bucket.update({k: v for k, v in given.items() if v is not None})
            project = {"id": "p", "name": given.get("project") or "p", "entity": {"id": "e", "name": "team"}}
            bucket = {"id": "b", "name": given.get("name"), "displayName": given.get("displayName"), "description": "",
                      "config": "{}", "sweepName": None, "historyLineCount": 0, "project": project}
            return self.reply({"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}})
        if "createRunFiles" in query:
            files = [{"name": n, "uploadUrl": f"http://127.0.0.1:{self.server.server_port}/up/{n}"} for n in given["files"]]
            return self.reply({"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}})
        return self.reply({"data": {"viewer": {"id": "1", "entity": "team", "username": "u", "flags": "{}",
                                               "teams": {"edges": []}}}})


def make_run(folder, steps):
    """A run with every kind of number, and its numbers by step."""
    os.makedirs(folder)
    rng, wanted = random.Random(1), {}
    with open(os.path.join(folder, "recipe.yaml"), "w", encoding="utf-8") as f:
        f.write(f"name: tracked\ntrain: {{train_steps: {steps}}}\nmodel: {{hidden_size: 64, rope_theta: 10000.0}}\n")
    with open(os.path.join(folder, "metrics.jsonl"), "w", encoding="utf-8") as f:
        for step in range(1, steps + 1):
            line = {"lm_loss": rng.uniform(1, 9), "grad_norm": rng.uniform(0, 1e3) * 10 ** rng.randint(-20, 20),
                    "exposed_comm_ms/dp": rng.random(), "step_time_ms": rng.uniform(1, 9), "consumed_tokens": 2048 * step}
            if step % 50 == 0:
                line["lm_loss"] = None
            f.write(json.dumps({"step": step, **line, "expert_tokens": [[1, 2]]}) + "\n")
            if step % 100 == 0:
                f.write(json.dumps({"step": step, "eval_loss": step / 7, "eval_set": "held"}) + "\n")
                line["eval_loss/held"] = step / 7
            wanted[step] = line
    return wanted


def same(a, b):
    """Numbers of the same bits; NaN, which JSON has as text or null, is NaN."""
    a, b = (math.nan if x in (None, "NaN") else float(x) for x in (a, b))
    return a == b or (math.isnan(a) and math.isnan(b))


def check_wandb(offline, port, wanted):
    environment = dict(os.environ, WANDB_BASE_URL=f"http://127.0.0.1:{port}", WANDB_API_KEY="a" * 40)
    client = os.path.join(os.path.dirname(sys.executable), "wandb")
    done = subprocess.run([client, "sync", offline], env=environment, cwd=os.path.dirname(offline), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=300, check=False)
    lines = {line["_step"]: line for line in Server.history.values()}
    if sorted(lines) != sorted(wanted):
        sys.exit(f"wandb sync sent {len(lines)} of {len(wanted)} steps; exit code {done.returncode}\n{done.stderr[-2000:]}")
    for step, values in wanted.items():
        for name, value in values.items():
            if not same(lines[step].get(name), value):
                sys.exit(f"wandb: step {step}, {name}: {lines[step].get(name)} where {value} was written")
    if json.loads(Server.bucket["config"])["model"]["value"]["hidden_size"] != 64 or Server.bucket["displayName"] != "tracked":
        sys.exit(f"wandb: another run: {Server.bucket}")


def check_mlflow(folder, wanted):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow
    client = mlflow.MlflowClient(tracking_uri=f"file://{os.path.abspath(folder)}")
    experiment = client.get_experiment_by_name("ltrain")
    (run,) = client.search_runs([experiment.experiment_id])
    if run.info.status != "FINISHED" or run.info.run_name != "tracked" or run.data.params["model.hidden_size"] != "64":
        sys.exit(f"mlflow: another run: {run.info}")
    for name in sorted({n for values in wanted.values() for n in values}):
        got = {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)}
        there = {step: values[name] for step, values in wanted.items() if name in values}
        if sorted(got) != sorted(there) or not all(same(got[s], there[s]) for s in got):
            sys.exit(f"mlflow: {name}: {len(got)} numbers, not the {len(there)} that were written")


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--steps", type=int, default=1500)
    o = a.parse_args()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as scratch:
        run, wandb, mlruns = (os.path.join(scratch, n) for n in ("run", "wandb", "mlruns"))
        wanted = make_run(run, o.steps)
        said = subprocess.run([os.path.abspath(o.binary), "report", run, "--wandb", wandb, "--mlflow", mlruns],
                              capture_output=True, text=True, check=True).stdout
        check_mlflow(mlruns, wanted)
        check_wandb(said.splitlines()[0].removeprefix("wandb sync "), server.server_port, wanted)
    print(f"compare-trackers: the clients of W&B and MLflow have all numbers of {o.steps} steps")


if __name__ == "__main__":
    main()
