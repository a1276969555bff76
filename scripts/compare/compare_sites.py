#!/usr/bin/env python3
"""Two nodes over a link of limited rate: a sum of gradients in every step, and DiLoCo, with --fragments also in fragments
with a delay, and with 8-bit sums, beside the plan. The nodes are network namespaces of this machine, the rate is a token
bucket (tc tbf). Needs root, and the data of scripts/quickstart.sh. Two minutes a round."""
# build: ltrain
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import measure

RECIPE = os.path.join(measure.REPOSITORY, "recipes", "diloco.yaml")
FEW = ["data.eval=[]", "train.eval_interval=0", "checkpoint.save_interval=0", "checkpoint.save_at_end=false",
       "schedule.lr_warmup_steps=0", "launch.ranks_per_node=1", "launch.threads_per_rank=1", "train.log_interval=1"]
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


def ways(inner_steps, fragments):
    """Name, overrides, and steps of a run; the first of them are not counted."""
    yield "a sum in every step", ["~diloco"], 0
    for h in inner_steps:
        every = [f"diloco.inner_steps={h}"]
        yield f"DiLoCo, every {h} steps", every, h
        if fragments:
            delay = h // fragments - 1
            streams = every + [f"diloco.fragments={fragments}", f"diloco.delay={delay}", "diloco.merge=0.5"]
            yield f"DiLoCo, every {h} steps, {fragments} fragments, delay {delay}", streams, h
            yield "the same with sums of int8", streams + ["diloco.sum=int8"], h


def run(o, rate, overrides, steps, scratch):
    out = os.path.join(scratch, "run")
    command = " ".join([o.binary, "run", RECIPE, f"output_dir={out}", *FEW, *overrides, f"train.train_steps={steps}"])
    burst = max(32768, int(rate * 1e6 / 8 / 250))  # enough from one tick of the kernel to the next
    shutil.rmtree(out, ignore_errors=True)
    done = subprocess.run(["unshare", "-n", "-m", "bash", "-c", NODES, "nodes", str(rate), command, scratch, str(burst)],
                          cwd=measure.REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
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
    a.add_argument("--message-seconds", type=float, default=1e-4, help="time of a small message over the link")
    o = a.parse_args()
    inner = [int(h) for h in o.inner_steps.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        if not o.profile:
            o.profile = os.path.join(scratch, "profile.json")
            subprocess.run([o.binary, "bench", "--output", o.profile], check=True, stdout=subprocess.DEVNULL)
        o.profile = os.path.abspath(o.profile)
        rows = [["Mbit/s", "", "planned tokens/s", "measured", "off", "times the sum in every step"]]
        record = []
        for rate in [int(r) for r in o.rates.split(",")]:
            for name, overrides, h in ways(inner, o.fragments):
                steps = 2 * h or o.steps
                planned = plan(o, rate, overrides, steps, scratch)
                tokens = planned["tokens_per_step"]
                seconds = []
                for _ in range(o.rounds):
                    # The first round, or the first step, fills caches and connections.
                    taken = run(o, rate, overrides, steps + (h or o.warmup), scratch)
                    seconds.append(sum(taken[h or o.warmup:]))
                measured = steps * tokens / statistics.median(seconds)
                expected = steps * tokens / planned["total_seconds"]
                record.append({"mbit": rate, "way": name, "planned": expected, "measured": measured, "seconds": seconds})
                sums = next(r["measured"] for r in record if r["mbit"] == rate)
                rows.append([str(rate), name, f"{expected:.0f}", f"{measured:.0f}", f"{100 * (expected / measured - 1):+.0f} %",
                             f"{measured / sums:.1f}"])
                print(rows[-1], file=sys.stderr)
    measure.write_report(
        o.out, "compare-sites", "Two nodes over a link of limited rate",
        ["scripts/compare.sh sites " + " ".join(sys.argv[1:])],
        [("Tokens a second", rows, "recipes/diloco.yaml, one thread a node, both on this machine. Planned by `ltrain bench` and "
          "the rate of the link.")], {"runs": record})


if __name__ == "__main__":
    main()
