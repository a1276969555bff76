// First and last line of a run.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct RunEnd {
  ExitCode code = ExitCode::done;  ///< done or preempted
  int64_t step = 0, first_step = 0;
  bool steps_given = false;  ///< --steps
  std::string stop_reason;   ///< preempted runs: the signal, or the key
  double seconds = 0;
};

/// "my-run: 1.24B llama parameters, 8 ranks of one GPU, bf16; ...". `has`: what a rank has. `micros`:
/// micro-batches of a rank in a step.
std::string begin_text(const Recipe& recipe, int64_t parameters, int world, const std::string& has,
                       size_t micros);
/// Threads of a rank on the CPU: "2 threads (avx512)".
std::string threads_text(int threads);
/// Notes on keys of the recipe that have no effect on the CPU.
std::vector<std::string> ineffective_on_cpu(const Recipe& recipe);
/// Step whose loss is above train.stop_loss.
std::string diverged_text(const Recipe& recipe, int64_t step, double loss);
/// "done: 100 steps in 4:05", or why the run ended before its last step and how to go on.
std::string end_text(const Recipe& recipe, const RunEnd& end);

}  // namespace ltrain
