#!/usr/bin/env python3
"""Two nodes over a link of limited rate: a sum of gradients in every step, and DiLoCo, with --fragments also in fragments
with a delay, and with 8-bit sums, beside the plan. The nodes are network namespaces of this machine, the rate is a token
bucket (tc tbf). With --slow the second node runs for a share of the time, and DiLoCo with equal shares of the batch is
compared with --shares. Needs root, and the data of scripts/quickstart.sh. Two minutes a round."""
# build: ltrain
import json
import os
import shutil
import statistics
import subprocess
import signal
import sys
import tempfile
import threading
import time

import measure

RECIPE = os.path.join(measure.REPOSITORY, "recipes", "diloco.yaml")
FEW = ["data.eval=[]", "train.eval_interval=0", "checkpoint.save_interval=0", "checkpoint.save_at_end=false",
       "schedule.lr_warmup_steps=0", "launch.ranks_per_node=1", "launch.threads_per_rank=1", "train.log_interval=1"]
TOKENS = 16 * 128  # in a step of the recipe
# Bytes of a frame of Ethernet that are data of TCP, of those that tc counts.
PAYLOAD = (1500 - 20 - 32) / (1500 + 14)
CLUSTER = """format: ltrain.cluster.v1
name: two nodes
profile: {profile}
nodes: 2
gpus_per_node: 1
cores_per_node: 1
references: {{tc: "the token bucket of the link", frames: "headers of Ethernet, IP and TCP"}}
levels:
  - name: link
    ranks: 0
    ranks_a_link: 1
    seconds: {{value: {seconds}, source: assumed, reference: "a small message of TCP"}}
    bytes_per_second: {{value: {rate}, source: measured, reference: tc}}
    sustained: {{value: {payload}, source: published, reference: frames}}
"""
# $1: megabits a second; $2: command; $3: folder for output; $4: bytes of a burst.
NODES = r"""set -e
mkdir -p /run/netns && mount -t tmpfs none /run/netns
ip link set lo up && ip netns add other
ip link add one type veth peer name two netns other
ip addr add 10.9.0.1/24 dev one && ip link set one up
ip netns exec other sh -c 'ip addr add 10.9.0.2/24 dev two && ip link set two up && ip link set lo up'
tc qdisc add dev one root tbf rate ${1}mbit burst ${4} latency 100ms
ip netns exec other tc qdisc add dev two root tbf rate ${1}mbit burst ${4} latency 100ms
export PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=10.9.0.1 PET_MASTER_PORT=23456
named() { echo "echo node$1 >/proc/sys/kernel/hostname; exec $2"; }
PET_NODE_RANK=0 unshare -u sh -c "$(named 0 "$2")" >"$3/node0" 2>&1 & first=$!
second=0
PET_NODE_RANK=1 ip netns exec other unshare -u sh -c "$(named 1 "$2")" >"$3/node1" 2>&1 || second=1
wait $first && [ $second = 0 ] || { cat "$3/node0" "$3/node1"; exit 1; }
"""


def ways(inner_steps, fragments, shares):
    """Name, overrides, and steps of a run; the first of them are not counted."""
    if shares:
        micro = ["train.micro_batch_size=2"]
        for h in inner_steps:
            yield f"every {h} steps, equal shares", [f"diloco.inner_steps={h}", *micro], h
            yield f"every {h} steps, shares {shares}", [f"diloco.inner_steps={h}", f"diloco.shares=[{shares}]", *micro], h
        return
    yield "a sum in every step", ["~diloco"], 0
    for h in inner_steps:
        every = [f"diloco.inner_steps={h}"]
        yield f"DiLoCo, every {h} steps", every, h
        if fragments:
            delay = h // fragments - 1
            streams = every + [f"diloco.fragments={fragments}", f"diloco.delay={delay}", "diloco.merge=0.5"]
            yield f"DiLoCo, every {h} steps, {fragments} fragments, delay {delay}", streams, h
            yield "the same with sums of int8", streams + ["diloco.sum=int8"], h


def processes_of_second_node(folder):
    """Processes of the run with output in `folder` that have the second node's environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as e, open(f"/proc/{pid}/cmdline", "rb") as c:
                if b"PET_NODE_RANK=1" in e.read().split(b"\0") and folder.encode() in c.read():
                    found.append(int(pid))
        except OSError:  # it has ended, or is not ours
            pass
    return found


def slow_down(folder, share, ended, cycle=0.03):
    """Stops the second node's processes for 1 - share of each cycle, until `ended`."""
    def send(pids, which):
        for pid in pids:
            try:
                os.kill(pid, which)
            except ProcessLookupError:
                pass
    while not ended.wait(0.2):
        pids = processes_of_second_node(folder)
        for _ in range(30):
            send(pids, signal.SIGSTOP)
            time.sleep(cycle * (1 - share))
            send(pids, signal.SIGCONT)
            time.sleep(cycle * share)


def run(o, rate, overrides, steps, scratch):
    out = os.path.join(scratch, "run")
    command = " ".join([o.binary, "run", RECIPE, f"output_dir={out}", *FEW, *overrides, f"train.train_steps={steps}"])
    burst = max(32768, int(rate * 1e6 / 8 / 250))  # enough from one tick of the kernel to the next
    shutil.rmtree(out, ignore_errors=True)
    ended = threading.Event()
    if o.slow:
        threading.Thread(target=slow_down, args=(f"output_dir={out}", o.slow, ended)).start()
    done = subprocess.run(["unshare", "-n", "-m", "bash", "-c", NODES, "nodes", str(rate), command, scratch, str(burst)],
                          cwd=measure.REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    ended.set()
    if done.returncode != 0:
        sys.exit(f"{command}\nexit code {done.returncode}\n{done.stdout}")
    with open(os.path.join(out, "metrics.jsonl")) as f:
        return [line["step_time_ms"] / 1e3 for line in map(json.loads, f) if "step_time_ms" in line]


def plan(o, rate, overrides, steps, scratch):
    cluster = os.path.join(scratch, "cluster.yaml")
    with open(cluster, "w") as out:
        out.write(CLUSTER.format(profile=o.profile, rate=rate * 1e6 / 8, payload=PAYLOAD, seconds=o.message_seconds))
    done = subprocess.run([o.binary, "plan", RECIPE, *FEW, *overrides, f"train.train_steps={steps}", "--cluster", cluster,
                           "--json"], cwd=measure.REPOSITORY, text=True, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main():
    a = measure.options(__doc__, rounds=1, warmup=1, steps=8)
    a.add_argument("--profile", help="of `ltrain bench` on this machine; default: measured now")
    a.add_argument("--rates", default="10,100,1000", help="megabits a second")
    a.add_argument("--inner-steps", default="10,50")
    a.add_argument("--fragments", type=int, default=0, help="a divisor of the inner steps; 0: none")
    a.add_argument("--slow", type=float, default=0, help="share of the time that the second node runs; 0: all")
    a.add_argument("--shares", default="3,1", help="diloco.shares beside equal ones, with --slow")
    a.add_argument("--message-seconds", type=float, default=1e-4, help="time of a small message over the link")
    o = a.parse_args()
    inner = [int(h) for h in o.inner_steps.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        if not o.profile and not o.slow:
            o.profile = os.path.join(scratch, "profile.json")
            subprocess.run([o.binary, "bench", "--output", o.profile], check=True, stdout=subprocess.DEVNULL)
        o.profile = os.path.abspath(o.profile or "")
        rows = [["Mbit/s", "", "planned tokens/s", "measured", "off", "times the first row"]]
        record = []
        for rate in [int(r) for r in o.rates.split(",")]:
            for name, overrides, h in ways(inner, o.fragments, o.shares if o.slow else ""):
                steps = 2 * h or o.steps
                planned = None if o.slow else plan(o, rate, overrides, steps, scratch)  # both nodes have one profile
                tokens = planned["tokens_per_step"] if planned else TOKENS
                seconds = []
                for _ in range(o.rounds):
                    # The first round, or the first step, fills caches and connections.
                    taken = run(o, rate, overrides, steps + (h or o.warmup), scratch)
                    seconds.append(sum(taken[h or o.warmup:]))
                measured = steps * tokens / statistics.median(seconds)
                expected = steps * tokens / planned["total_seconds"] if planned else None
                record.append({"mbit": rate, "way": name, "planned": expected, "measured": measured, "seconds": seconds})
                sums = next(r["measured"] for r in record if r["mbit"] == rate)
                beside = ["", ""] if not planned else [f"{expected:.0f}", f"{100 * (expected / measured - 1):+.0f} %"]
                rows.append([str(rate), name, beside[0], f"{measured:.0f}", beside[1], f"{measured / sums:.2f}"])
                print(rows[-1], file=sys.stderr)
    measure.write_report(
        o.out, "compare-sites", "Two nodes over a link of limited rate",
        ["scripts/compare.sh sites " + " ".join(sys.argv[1:])],
        [("Tokens a second", rows, "recipes/diloco.yaml, one thread a node, both on this machine. Planned by `ltrain bench` and "
          "the rate of the link.")], {"runs": record})


if __name__ == "__main__":
    main()
