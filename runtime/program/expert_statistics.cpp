// Router sums of a step.
#include "runtime/program/train_program.h"

namespace ltrain {

ExpertStatistics TrainProgram::expert_statistics(const StepSums::Values& values) const {
  ExpertStatistics all;
  if (!sums_->experts.on()) return all;
  const Tensor& experts = sums_->experts.tensor;
  const MoeConfig& m = options_.model.moe;
  const int64_t e = m.router_outputs(), real = m.num_experts;
  for (int64_t layer = 0; layer < experts.shape[0]; ++layer) {
    const bool moe = options_.model.has_experts(layer);
    const double* sums = values.of(sums_->experts).data() + layer * experts.cols();
    all.chosen.emplace_back(sums, moe ? sums + real : sums);
    all.kept.emplace_back(sums + e, moe ? sums + e + real : sums + e);
    all.balance_loss += sums[2 * e];
    all.z_loss += sums[2 * e + 1];
    if (m.entropy_coeff > 0) all.entropy_loss += sums[2 * e + 4];
    if (m.freeze_step > 0)
      all.distillation_loss = all.distillation_loss.value_or(0) + sums[experts.cols() - 1];
    if (options_.dispatch.row_budget == 0) continue;
    all.beyond_rows.push_back(sums[2 * e + 2]);
    all.beyond_slices.push_back(sums[2 * e + 3]);
  }
  return all;
}

}  // namespace ltrain
