#include "runtime/train/model_flops.h"
#include "runtime/program/recipe_program.h"

#include <algorithm>

namespace ltrain {

void ModelFlops::begin(const Recipe& recipe, const MachineProfile& profile, const Plan& plan, int world,
                       bool lead, const std::function<double(double)>& sum) {
  world_ = world;
  step_flops_ = sum(plan.ranks.at(0).model_flops);
  measured_here_ = device_of(recipe) == DeviceKind::cpu && !profile.measured;
  if (!measured_here_) {
    peak_.begin(plan.peak_flops * world);
    return;
  }
  type_ = precision_policy(std::string(to_string(recipe.precision))).compute;
  threads_ = threads_per_rank(recipe);
  ranks_on_host_ = static_cast<int>(recipe.launch.ranks_on_host);
  const MatmulPeaks peaks(matmul_peaks_path());
  const MatmulPeaks::Kept kept = lead ? peaks.find(type_, threads_, ranks_on_host_) : MatmulPeaks::Kept();
  double measured = 0;
  if (sum(kept.enough()) == 0) {
    measured = sum(measure_matmul_peak(type_)) / world;
    if (lead) peaks.keep(type_, threads_, ranks_on_host_, measured);
  }
  peak_.begin(std::max(measured, kept.flops) * world);
}

double ModelFlops::mfu(int64_t step, double rate, std::string& note) {
  const double share = peak_.of(rate);
  note = peak_.note(step, !measured_here_);
  if (!note.empty() && measured_here_)
    MatmulPeaks(matmul_peaks_path()).exceeded(type_, threads_, ranks_on_host_, rate / world_);
  return share;
}

}  // namespace ltrain
