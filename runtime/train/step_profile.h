// Profiled steps: a trace of each, and the ops that took its time compared with the plan.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor/timeline.h"
#include "runtime/machines/machine_profile.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

class StepProfile {
 public:
  StepProfile(const Recipe& recipe, const MachineProfile& profile, int rank, int ranks)
      : recipe_(recipe), profile_(profile), rank_(rank), ranks_(ranks) {}

  /// Starts timing the work that this thread enqueues, if this rank profiles `step`.
  void begin(int64_t step);
  bool running() const { return timeline_.has_value(); }
  /// Adds a range of host work. `start` and `end` in seconds.
  void host(const char* name, double start, double end) { host_.push_back({name, start, end}); }
  /// Ends the profile of a step. All streams must be synchronized. Writes
  /// OUTPUT_DIR/traces/step-S-rank-R.json and returns lines for the user: the ops that took most of the step.
  /// `whole`: the step had all micro-batches of the plan and is of the planned kind.
  std::vector<std::string> end(bool whole);

 private:
  struct HostRange {
    const char* name;
    double start, end;
  };
  const Recipe& recipe_;
  const MachineProfile& profile_;
  int rank_, ranks_;
  int64_t step_ = 0;
  double begun_ = 0;
  std::optional<Timeline> timeline_;
  std::vector<HostRange> host_;
};

}  // namespace ltrain
