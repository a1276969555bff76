#!/usr/bin/env bash
# All that needs a GPU, on a machine with one and no network, in ten minutes: the kernels against the CPU's, also under
# compute-sanitizer, each parallel axis with its ranks on one GPU, the smoke test, a comparison with PyTorch. Leaves OUT/gpu-check.md and OUT/gpu-check.json, which name card, driver and versions;
# what is kept of them is kept under docs/measurements. Takes a ready build-cuda, or builds it.
# Usage: scripts/gpu-check.sh [OUT]     (default: gpu-check)
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-gpu-check}
mkdir -p "$out"
out=$(realpath "$out")
ltrain=build-cuda/ltrain
[ -x $ltrain ] && [ -x build-cuda/tests/test_cuda ] || scripts/build.sh cuda ltrain test_cuda || exit 1
card=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1) || {
  echo "gpu-check: no GPU: $card" >&2
  exit 1
}

names=() results=() seconds=()
failed=0
left() { echo $((LTRAIN_CHECK_SECONDS - SECONDS)); }
: "${LTRAIN_CHECK_SECONDS:=570}"  # for everything
# check NAME COMMAND...: its output is in OUT/NAME.log.
check() {
  local name=$1 began=$SECONDS result=passed
  shift
  if (($(left) < 5)); then
    result="not run: out of time"
  else
    "$@" >"$out/$name.log" 2>&1 || result="failed ($?)"
  fi
  [ "$result" = passed ] || [[ "$result" = "not run: "* ]] || failed=1
  # What a test program left out counts as not run.
  [ "$result" != passed ] || ! grep -q '^SKIPPED: ' "$out/$name.log" || result="passed, $(grep -c '^SKIPPED: ' "$out/$name.log") left out"
  names+=("$name") results+=("$result") seconds+=($((SECONDS - began)))
  echo "gpu-check: $name: $result, $((SECONDS - began)) s"
}

note() { names+=("$1") results+=("$2") seconds+=(0) && echo "gpu-check: $1: $2"; }

check kernels timeout 150 build-cuda/tests/test_cuda

# Each axis against one CPU process: the losses of three steps, in fp32.
tokens=$out/text
$ltrain data build --tokenizer byte --split 95,5 --force --input README.md docs --output "$tokens" >"$out/data.log" 2>&1
small=(recipes/smoke-1gpu.yaml precision=fp32 "data.train=[{path: $tokens-train}]" data.eval=[] train.train_steps=3
  train.eval_interval=0 schedule.lr_warmup_steps=1 train.log_interval=1 model.num_hidden_layers=4 model.hidden_size=128
  model.intermediate_size=256 model.num_attention_heads=4 train.micro_batch_size=1 train.global_batch_size=8
  checkpoint.save_interval=0 checkpoint.save_at_end=false checkpoint.resume=never)
losses() { sed -n 's/.*"lm_loss":\([0-9.]*\).*/\1/p' "$1/metrics.jsonl"; }
same_losses() {  # FOLDER key=value ...
  local folder=$1
  shift
  rm -rf "$folder"
  $ltrain run "${small[@]}" device=cuda debug.shared_gpu=true "output_dir=$folder" "$@" || return
  compare_losses 1e-4 "$out/cpu" "$folder"
}
compare_losses() {  # TOLERANCE FOLDER FOLDER
  paste <(losses "$2") <(losses "$3") | awk -v most="$1" '
    { d = $1 - $2; if (d < 0) d = -d; print $1, $2; if (NF != 2 || d > most * $1) bad = 1 }
    END { exit bad || NR != 3 }'
}
as_on_cpu() {  # TOLERANCE FOLDER key=value ...: what changes numbers is held against the same on the CPU
  local most=$1 folder=$2
  shift 2
  rm -rf "$folder" "$folder-cpu"
  $ltrain run "${small[@]}" device=cpu "output_dir=$folder-cpu" "$@" || return
  $ltrain run "${small[@]}" device=cuda debug.shared_gpu=true "output_dir=$folder" "$@" || return
  compare_losses "$most" "$folder-cpu" "$folder"
}
# Who computes attention, held against native kernels, which are held against the CPU's: in bf16, with heads of 64. With
# cudnn a run fails where it would be anything else.
cudnn_as_own() {  # key=value ...
  local who
  rm -rf "$out"/attention-{own,cudnn}
  for who in own cudnn; do
    $ltrain run "${small[@]}" device=cuda precision=bf16 model.num_attention_heads=2 "output_dir=$out/attention-$who" \
      "attention_backend=$who" "$@" || return
  done
  compare_losses 1e-2 "$out/attention-own" "$out/attention-cudnn"
}
rm -rf "$out/cpu"
check cpu $ltrain run "${small[@]}" device=cpu "output_dir=$out/cpu"
check one-rank same_losses "$out/one"
check data same_losses "$out/data2" parallel.data=2
for stage in 1 2 3; do check "zero-$stage" same_losses "$out/zero$stage" parallel.data=2 parallel.zero_stage=$stage; done
check tensor same_losses "$out/tensor2" parallel.tensor=2 parallel.sequence_parallel=true
check pipeline same_losses "$out/pipeline2" parallel.pipeline=2
check context same_losses "$out/context2" parallel.context=2
check cuda-graphs same_losses "$out/graphs" cuda_graphs=on
check cudnn-forward cudnn_as_own
check cudnn-backward cudnn_as_own deterministic=false
check cudnn-graphs cudnn_as_own deterministic=false cuda_graphs=on
repeats_its_bits() {
  $ltrain run "${small[@]}" device=cuda precision=bf16 model.num_attention_heads=2 attention_backend=cudnn \
    "output_dir=$out/attention-again" || return
  $ltrain run "${small[@]}" device=cuda precision=bf16 model.num_attention_heads=2 attention_backend=cudnn \
    "output_dir=$out/attention-again-2" || return
  compare_losses 0 "$out/attention-again" "$out/attention-again-2"
}
rm -rf "$out"/attention-again{,-2}
check cudnn-repeats repeats_its_bits
check offload same_losses "$out/offload" parallel.data=2 parallel.zero_stage=3 offload.optimizer.device=cpu \
  offload.params.device=cpu offload.activations.device=cpu
check one-bit as_on_cpu 1e-3 "$out/one-bit" parallel.data=2 optimizer.kind=onebit_adam optimizer.freeze_step=2
check sophia as_on_cpu 1e-3 "$out/sophia" optimizer.kind=sophia_h optimizer.hessian_interval=2
check int8-gradients as_on_cpu 1e-3 "$out/int8" parallel.data=2 parallel.grad_reduce_dtype=int8
for precision in bf16 fp16 fp8; do check $precision as_on_cpu 1e-2 "$out/$precision" precision=$precision; done
check smoke timeout 90 scripts/smoke.sh $ltrain
sanitizer=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer)
for tool in memcheck racecheck; do
  if [ -n "$sanitizer" ]; then
    check $tool timeout 80 "$sanitizer" --tool $tool --error-exitcode 1 build-cuda/tests/test_cuda \
      '~*training*' '~every*' '~a *' '~ltrain run*'  # the kernels alone
  else
    note $tool "not run: compute-sanitizer is not there"
  fi
done
# A trace of a step, and the rates of this card that plans are priced with afterwards.
check profile same_losses "$out/profile" profile.step_start=2
check bench timeout 60 $ltrain bench --device cuda --output "$out/profile.json"
check compare-attention scripts/compare-attention-gpu.sh --binary $ltrain --out "$out" --rounds 1 --budget 70
check compare-torch scripts/compare-torch-gpu.sh --binary $ltrain --out "$out" --case llama-1b --rounds 2 --steps 5 \
  --budget $(($(left) - 15))

version() { build-cuda/ltrain --version | head -1; }
{
  echo "# GPU check, $(date -u +%F)"
  echo
  echo "$card; $(version)"
  echo
  echo "| check | result | seconds |"
  echo "|---|---|---|"
  for i in "${!names[@]}"; do echo "| ${names[i]} | ${results[i]} | ${seconds[i]} |"; done
} >"$out/gpu-check.md"
{
  printf '{"card": "%s", "version": "%s", "checks": [' "$card" "$(version)"
  for i in "${!names[@]}"; do
    printf '%s{"name": "%s", "result": "%s", "seconds": %s}' "$( ((i)) && echo ', ')" "${names[i]}" "${results[i]}" "${seconds[i]}"
  done
  echo ']}'
} >"$out/gpu-check.json"
cat "$out/gpu-check.md"
exit $failed
