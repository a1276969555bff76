# shellcheck shell=bash disable=SC2154
# Requeues of the script of `ltrain slurm`, as a part of scripts/test-slurm.sh, whose cluster, `check`, `dir`, `recipe`
# and `settings` it uses. Each job is compared with an unbroken run of the same recipe, loss by loss.

requeue_settings=("${settings[@]}" train.train_steps=12 checkpoint.save_interval=4 checkpoint.async_save=false)

# The losses and gradient norms of a run, a line for each step; of a step that was repeated, the last.
losses() {
  python3 - "$1/metrics.jsonl" <<'PY'
import json, sys
steps = {}
for line in open(sys.argv[1]):
    record = json.loads(line)
    if "lm_loss" in record:
        steps[record["step"]] = (record["lm_loss"], record["grad_norm"])
for step in sorted(steps):
    print(step, *steps[step])
PY
}

# submit NAME [VARIABLE=VALUE...] [-- SLURM_OPTION...]: the script of `ltrain slurm` for output_dir $dir/NAME. Prints the
# number of the job.
submit() {
  local name=$1
  shift
  "$ltrain" slurm "$recipe" "${requeue_settings[@]}" "output_dir=$dir/$name" --nodes 2 --ranks-per-node 2 --time 10 \
    --signal-lead 60 --max-attempts 4 --program "$ltrain" --output "$dir/$name.sbatch" >&2
  env "$@" sbatch --parsable --output="$dir/$name.out" --chdir="$root" "$dir/$name.sbatch"
}
state_of() { squeue -h -j "$1" -o %T 2>/dev/null; }
# wait_step NAME STEP: until the run has done the step.
wait_step() {
  local i
  for i in $(seq 400); do
    grep -qs "\"step\": *$2," "$dir/$1/metrics.jsonl" && return 0
    sleep 0.1
  done
  echo "step $2 of $1 did not come within 40 s: $(tail -n 5 "$dir/$1.out")"
  return 1
}
# ended JOB NAME: waits until the job has left the queue, starts it early where Slurm delays its requeue.
ended() {
  local i
  for i in $(seq 600); do
    case "$(state_of "$1")" in
      '' | COMPLETED | FAILED | CANCELLED) break ;;
    esac
    sleep 0.1
  done
  cat "$dir/$2.out"
  scontrol show job "$1" 2>/dev/null | grep -o 'JobState=[A-Z_]*\|Restarts=[0-9]*\|ExitCode=[0-9]*' | sed 's/^/slurm: /'
}
# same_losses NAME: the losses of $dir/NAME are those of the unbroken run.
same_losses() {
  losses "$dir/unbroken" >"$dir/unbroken.losses"
  losses "$dir/$1" >"$dir/$1.losses"
  [ "$(wc -l <"$dir/$1.losses")" -eq 12 ] && diff "$dir/unbroken.losses" "$dir/$1.losses" && echo "12 losses are equal"
}
# slow: each step waits, so that something can happen to the job.
slow="LTRAIN_FAULT=train.step:*:*:sleep=400"

unbroken() {
  local job
  job=$(submit unbroken)
  ended "$job" unbroken
  [ "$(losses "$dir/unbroken" | wc -l)" -eq 12 ]
}
check "an unbroken run, for the losses of those below" 0 'JobState=COMPLETED' -- unbroken

preempted() {
  local job urgent
  job=$(submit preempted "$slow")
  wait_step preempted 5 || return 1
  urgent=$(sbatch --parsable --partition=urgent --nodes=2 --ntasks-per-node=4 --output=/dev/null --wrap 'sleep 1')
  ended "$job" preempted
  same_losses preempted
  echo "urgent: $(state_of "$urgent")"
}
check "a preempted job saves within its grace time, is requeued, and ends with the losses of an unbroken run" 0 \
  'exit code 75' 'requeueing job' 'Restarts=1' 'JobState=COMPLETED' '12 losses are equal' -- preempted

# A rank that dies, twice: its seventh step is step 7 of the first attempt and step 11 of the second.
killed() {
  local job
  job=$(submit killed LTRAIN_FAULT=train.step:1:7:kill)
  ended "$job" killed
  same_losses killed
}
check "a job that loses a rank is requeued, and ends with the losses of an unbroken run" 0 \
  'requeueing job' 'Restarts=2' 'JobState=COMPLETED' '12 losses are equal' -- killed

# All processes of the first node, where the batch script runs, are gone at once. Slurm requeues the job by itself.
node_lost() {
  local job pid
  job=$(submit node-lost "$slow")
  wait_step node-lost 5 || return 1
  # Slurm's own processes first, and all in one call, so that none tells of another's end.
  local steps=() others=() parent
  for pid in $(marked); do
    tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qs '^SLURMD_NODENAME=ltn1$' || continue
    others+=("$pid")
    parent=$(ps -o ppid= -p "$pid" | tr -d ' ')
    if tr '\0' ' ' 2>/dev/null <"/proc/$parent/cmdline" | grep -qs "^slurmstepd: \[$job\."; then steps+=("$parent"); fi
  done
  kill -KILL "$(cat "$dir/slurmd-ltn1.pid")" "${steps[@]}" "${others[@]}" 2>/dev/null
  echo "killed: ${#steps[@]} of Slurm, ${#others[@]} of the job"
  scontrol update NodeName=ltn1 State=DOWN Reason=test
  slurmd -N ltn1 -f "$dir/slurm.conf" >>"$dir/slurmd1.out" 2>&1
  scontrol update NodeName=ltn1 State=RESUME 2>/dev/null || true
  ended "$job" node-lost
  same_losses node-lost
}
check "a job that loses its first node is requeued, and ends with the losses of an unbroken run" 0 \
  'Restarts=1' 'JobState=COMPLETED' '12 losses are equal' -- node_lost

# The third step of each attempt kills a rank before the first checkpoint.
no_progress() {
  local job
  job=$(submit no-progress LTRAIN_FAULT=train.step:1:3:kill)
  ended "$job" no-progress
}
check "attempts without progress end the job with 76, and it is not requeued" 0 'Restarts=2' 'JobState=FAILED' \
  'ExitCode=76' 'exit code 76: 3 attempts in a row' -- no_progress

cancelled() {
  local job
  job=$(submit cancelled "$slow")
  wait_step cancelled 3 || return 1
  scancel "$job"
  ended "$job" cancelled
  sleep 8 # longer than Slurm delays a requeue
  scontrol show job "$job" | grep -o 'JobState=[A-Z_]*' | sed 's/^/later: /'
}
check "a job that its user cancels saves and is not requeued" 0 'later: JobState=CANCELLED' 'stopped at step' -- cancelled
