#include "app/cluster/slurm_requeue.h"

#include <fmt/format.h>

namespace ltrain::app {

std::string requeue_functions() {
  return R"sh(idle_file=$output_dir/.idle-attempts-$SLURM_JOB_ID

# The newest committed checkpoint; none: empty.
newest() {
  local last='' commit
  for commit in "$output_dir"/checkpoints/step-*/COMMIT; do
    [ -e "$commit" ] && last=$commit
  done
  echo "$last"
}
begun=$(newest)

)sh";
}

std::string requeue_end(const std::string& codes) {
  return R"sh(step=$!
trap 'kill -USR1 "$step" 2>/dev/null' USR1 TERM
code=0
while true; do
  wait "$step"
  code=$?
  kill -0 "$step" 2>/dev/null || break # a trapped signal ends wait, not the step
done

# 75 saved after a signal, 71 a rank died or hung, 128 and more killed by a signal: start again.
# 64 recipe, 65 data, 70 internal, 73 storage, 76 no progress, 78 too little memory: another attempt would
# end the same way.
again=0
case "$code" in )sh" +
         codes + R"sh() again=1 ;; esac
[ "$code" -lt 128 ] || again=1
# A job that was cancelled stays so. One that Slurm ends after its time limit shows the limit as its reason.
case "$(scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null)" in
  *Reason=TimeLimit*) ;;
  *JobState=CANCELLED* | *JobState=COMPLETING*) again=0 ;;
esac
# Attempts in a row that lost a rank and saved nothing.
idle=0
if [ "$again" -eq 1 ] && [ "$code" -ne 75 ] && [ "$(newest)" = "$begun" ]; then
  [ ! -s "$idle_file" ] || read -r idle <"$idle_file"
  case "$idle" in '' | *[!0-9]*) idle=0 ;; esac
  idle=$((idle + 1))
fi
if [ "$idle" -ge )sh" +
         std::to_string(kIdleAttempts) + R"sh( ]; then
  echo "ltrain: exit code 76: $idle attempts in a row lost a rank and saved no checkpoint (the last: exit code $code)"
  again=0
  code=76
fi
if [ "$again" -eq 1 ] && [ "$attempt" -lt "$max_attempts" ]; then
  [ ! -d "$output_dir" ] || echo "$idle" >"$idle_file"
  echo "ltrain: exit code $code, attempt $attempt of $max_attempts: requeueing job $SLURM_JOB_ID"
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
rm -f "$idle_file"
exit "$code"
)sh";
}

}  // namespace ltrain::app
