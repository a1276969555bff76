#!/bin/bash
# Runs ltrain under a real Slurm: a private cluster of two virtual nodes on this machine, in a temporary directory
# with its own munge and ports. Needs root and the packages slurm-wlm and munge (installed when missing).
#
# Usage: scripts/test-slurm.sh                 the tests of this file
#        scripts/test-slurm.sh COMMAND...      the command, with four tasks on both nodes
# Ends by itself within 300 s; leaves no process and no file behind, however it ends.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
ltrain=${LTRAIN:-$root/build/ltrain}

if [ "$(id -u)" -ne 0 ]; then
  echo "test-slurm: needs root, to run slurmd" >&2
  exit 1
fi
for program in slurmctld slurmd munged srun; do
  if ! command -v "$program" >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q slurm-wlm munge >/dev/null
    break
  fi
done

dir=$(mktemp -d "${TMPDIR:-/tmp}/ltrain-slurm.XXXXXX")
chmod 755 "$dir"
pids=()
cleanup() {
  trap - EXIT INT TERM HUP
  [ -z "${watchdog:-}" ] || kill "$watchdog" 2>/dev/null || true
  # Steps first, while there is a controller to end them; then daemons by the process ids that they wrote.
  if [ -S "$dir/munge.sock" ]; then timeout 5 scancel --full --state=RUNNING -u root 2>/dev/null || true; fi
  local file
  for file in "$dir"/*.pid; do
    [ -s "$file" ] && pids+=("$(cat "$file")")
  done
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for _ in $(seq 20); do
    leftovers && break
    sleep 0.1
  done
  for pid in "${pids[@]}" $(marked); do kill -KILL "$pid" 2>/dev/null || true; done
  cd /
  rm -rf "$dir"
}
# Processes that carry this cluster's directory in their environment or arguments.
marked() {
  local p
  for p in /proc/[0-9]*; do
    case "${p#/proc/}" in "$$" | "$BASHPID") continue ;; esac
    if tr '\0' ' ' 2>/dev/null <"$p/environ" | grep -qs "LTRAIN_SLURM_TEST=$dir" ||
      tr '\0' ' ' 2>/dev/null <"$p/cmdline" | grep -qs "$dir/"; then
      echo "${p#/proc/}"
    fi
  done
}
leftovers() {
  local pid
  for pid in "${pids[@]}"; do
    kill -0 "$pid" 2>/dev/null && return 1
  done
  return 0
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The whole script ends by itself.
(
  trap 'kill "$sleeper" 2>/dev/null; exit 0' TERM
  sleep "${LTRAIN_SLURM_TEST_SECONDS:-300}" &
  sleeper=$!
  wait "$sleeper"
  echo "test-slurm: took longer than ${LTRAIN_SLURM_TEST_SECONDS:-300} s" >&2
  kill -TERM $$
) &
watchdog=$!

free_port() {
  local port
  while true; do
    port=$((20000 + RANDOM % 20000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
  echo "$port"
}

dd if=/dev/urandom of="$dir/munge.key" bs=1024 count=1 status=none
chmod 600 "$dir/munge.key"
mkdir -p "$dir/state" "$dir/spool-ltn1" "$dir/spool-ltn2"
cat >"$dir/slurm.conf" <<CONF
ClusterName=ltrain
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,sched_interval=2
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
ReturnToService=2
KillWait=5
MessageTimeout=10
SlurmdTimeout=20
NodeName=ltn1 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$(free_port) CPUs=4 RealMemory=2000 State=UNKNOWN
NodeName=ltn2 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$(free_port) CPUs=4 RealMemory=2000 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=test Nodes=ltn[1-2] Default=YES MaxTime=10 State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ltn[1-2] MaxTime=10 State=UP PriorityTier=9 PreemptMode=off
CONF
export SLURM_CONF=$dir/slurm.conf LTRAIN_SLURM_TEST=$dir

munged --key-file="$dir/munge.key" --socket="$dir/munge.sock" --pid-file="$dir/munged.pid" \
  --log-file="$dir/munged.log" --seed-file="$dir/munged.seed" --num-threads=2 --force >"$dir/munged.out" 2>&1
slurmctld -c -f "$dir/slurm.conf" >"$dir/slurmctld.out" 2>&1
slurmd -N ltn1 -f "$dir/slurm.conf" >"$dir/slurmd1.out" 2>&1
slurmd -N ltn2 -f "$dir/slurm.conf" >"$dir/slurmd2.out" 2>&1
for _ in $(seq 150); do
  [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && break
  sleep 0.1
done
if [ "$(sinfo -h -t idle -o %D 2>/dev/null)" != 2 ]; then
  echo "test-slurm: the nodes did not come up" >&2
  tail -n 20 "$dir"/*.log "$dir"/*.out >&2
  exit 1
fi

step=(timeout -k 2 40 srun --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --kill-on-bad-exit=1 --mpi=none)
if [ $# -gt 0 ]; then
  code=0
  "${step[@]}" "$@" || code=$?
  exit "$code"
fi

failures=0
results=$root/build/test-slurm.log # for scripts/fault-table.py
mkdir -p "$root/build"
: >"$results"
# check NAME EXPECTED_CODES GREP... -- COMMAND: its exit code is one of the codes; its output has every pattern.
check() {
  local name=$1 codes=$2 patterns=() begin code=0 good=1
  shift 2
  while [ "$1" != -- ]; do
    patterns+=("$1")
    shift
  done
  shift
  begin=$(date +%s%N)
  "$@" >"$dir/output" 2>&1 || code=$?
  [[ " $codes " == *" $code "* ]] || good=0
  for pattern in "${patterns[@]}"; do
    grep -q -- "$pattern" "$dir/output" || good=0
  done
  if [ "$good" = 1 ]; then
    echo "ok    $name ($((($(date +%s%N) - begin) / 1000000)) ms)" | tee -a "$results"
  else
    echo "FAIL  $name: exit code $code, expected $codes and ${patterns[*]}" | tee -a "$results"
    sed 's/^/      /' "$dir/output"
    failures=$((failures + 1))
  fi
}

check "four ranks on two nodes find each other and sum" 0 'selftest: 4 ranks (Slurm), 20 steps' -- \
  "${step[@]}" "$ltrain" selftest allreduce --steps 20
check "the same on one node" 0 'selftest: 3 ranks (Slurm)' -- \
  timeout 30 srun --nodes=1 --ntasks=3 --mpi=none "$ltrain" selftest allreduce --steps 20
check "a killed rank ends the step; rank and node are named" "71 137" 'rank 3 on host ltn2' 'all_reduce #' -- \
  env LTRAIN_FAULT=selftest.step:3:20:kill "${step[@]}" "$ltrain" selftest allreduce --steps 2000 --step-seconds 0.01
check "a missing collective ends the step with its own exit code" "70" 'make different calls' -- \
  env LTRAIN_FAULT=collective.enter:2:39:skip "${step[@]}" "$ltrain" selftest allreduce --steps 2000 --step-seconds 0.01

# A signal to the step: all ranks save and stop, exit code 75.
signal_step() {
  "${step[@]}" "$ltrain" selftest allreduce --steps 4000 --step-seconds 0.01 &
  local srun=$!
  sleep 2
  scancel --signal=USR1 "$(squeue -h -o %A | tail -n 1)"
  wait "$srun"
}
check "USR1 stops all ranks together, exit code 75" 75 'selftest: 4 ranks (Slurm).*stopped by' 'SIGUSR1: all ranks save' -- signal_step

# Outside a step, in a batch script: the allocation of two nodes is not taken for one node.
check "without srun in an allocation of two nodes: refused, with the remedy" 64 'srun ltrain run' -- \
  timeout 30 salloc -Q --nodes=2 --ntasks=2 "$ltrain" selftest allreduce

recipe=$root/recipes/quickstart.yaml
if [ -f "$recipe" ] && "$ltrain" run --help >/dev/null 2>&1; then
  text=$dir/data/text
  "$ltrain" data build --tokenizer byte --split 90,10 --force --input "$root/runtime" --output "$text" >/dev/null
  settings=(parallel.data=4 train.micro_batch_size=1 train.train_steps=4 train.log_interval=1 train.eval_interval=0
    schedule.lr_warmup_steps=1 model.num_hidden_layers=2 checkpoint.save_interval=2
    "data.train=[{path: $text-train}]" "data.eval=[{path: $text-val}]")
  check "ltrain run recipes/quickstart.yaml on both nodes" 0 -- \
    "${step[@]}" "$ltrain" run "$recipe" "${settings[@]}" "output_dir=$dir/run"
  check "its checkpoint is whole" 0 'step' -- "$ltrain" checkpoint list "$dir/run"
  check "started again, it has nothing left to do" 0 -- \
    "${step[@]}" "$ltrain" run "$recipe" "${settings[@]}" "output_dir=$dir/run"
  # The generated script, through sbatch.
  batch() {
    "$ltrain" slurm "$recipe" "${settings[@]}" "output_dir=$dir/batch" --nodes 2 --ranks-per-node 2 \
      --time 10 --signal-lead 60 --max-attempts 1 --program "$ltrain" --output "$dir/job.sbatch"
    local code=0
    timeout 50 sbatch --wait --output="$dir/batch.out" --chdir="$root" "$dir/job.sbatch" || code=$?
    cat "$dir/batch.out"
    return "$code"
  }
  check "the script of ltrain slurm, through sbatch" 0 -- batch
  . scripts/test-slurm-requeue.sh
fi

[ -z "$(squeue -h)" ] || {
  echo "FAIL  jobs are left in the queue"
  squeue
  failures=$((failures + 1))
}
[ "$failures" -eq 0 ] || exit 1
echo "test-slurm: all passed"
