// MFU of a job: model FLOPs of all ranks in a step over the peak rate of their matmuls.
#pragma once
#include <functional>
#include <string>

#include "runtime/machines/machine_profile.h"
#include "runtime/machines/matmul_peak.h"
#include "runtime/plan/plan_types.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

class ModelFlops {
 public:
  /// Collective: `sum` adds a number over all ranks. On a CPU that `ltrain bench` has not measured, the first
  /// runs measure the rate of matmuls on all ranks at the same time and keep the best. `lead`: rank 0.
  void begin(const Recipe& recipe, const MachineProfile& profile, const Plan& plan, int world, bool lead,
             const std::function<double(double)>& sum);

  double per_step() const { return step_flops_; }  ///< all ranks, for a step with the full global batch
  /// MFU of step `step` at `rate` model FLOP/s of all ranks. Sets `note` once, if the measured peak is too
  /// low.
  double mfu(int64_t step, double rate, std::string& note);

 private:
  bool measured_here_ = false;  // the peak was measured by runs, not by `ltrain bench`
  DType type_ = DType::f32;
  int threads_ = 1, ranks_on_host_ = 1, world_ = 1;
  double step_flops_ = 0;
  PeakShare peak_;
};

}  // namespace ltrain
