// Measured steps: a trace of each profiled step, and what took its time, beside what was planned.
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

  /// Times what this thread enqueues from here on, where this rank is to profile `step`.
  void begin(int64_t step);
  bool running() const { return timeline_.has_value(); }
  /// A piece of the host's own work.
  void host(const char* name, double start, double end) { host_.push_back({name, start, end}); }
  /// All streams have been synchronized. Writes OUTPUT_DIR/traces/step-S-rank-R.json and returns lines for
  /// the user: the ops that took most of the step. `whole`: it had all micro-batches of the plan, and was of
  /// its kind.
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
