// A run as trackers of experiments take it: its name, its settings, and its numbers by step.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "base/json/json.h"

namespace ltrain {

/// A run as a tracker needs it, beside its numbers. Times are Unix seconds.
struct TrackedRun {
  std::string folder;  ///< output_dir of the run
  std::string name;    ///< the recipe has it
  std::string host;
  int64_t started = 0;    ///< when the run wrote its recipe
  nlohmann::json config;  ///< the whole recipe, without commands
  /// 32 hexadecimal digits, the same for the same folder, host and start.
  std::string id() const;
  /// The run has made all steps that its recipe asks for.
  bool done(int64_t steps) const;
};

/// Reads RUN_DIR/recipe.yaml. Throws Error (data) if it is not there.
TrackedRun read_tracked_run(const std::string& folder);

/// Numbers of one step, with those of its evaluations: `eval_loss`, or `eval_loss/SET` of a named set. NaN
/// where the file has null.
struct StepNumbers {
  int64_t step = 0;
  double seconds = 0;  ///< time of all steps up to this one
  std::map<std::string, double> values;
};

/// Calls `take` for each step of RUN_DIR/metrics.jsonl, in the order of the steps. Restarts, stragglers and
/// lists are left out. Throws Error (data) with file and line for contents that no run writes.
void each_step(const std::string& folder, const std::function<void(const StepNumbers&)>& take);

}  // namespace ltrain
