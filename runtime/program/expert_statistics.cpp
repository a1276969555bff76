// Router sums of a step.
#include "runtime/program/train_program.h"

namespace ltrain {

/// Router sums, over all ranks.
Tensor TrainProgram::summed_routers() { return sums_.flat(2 + squares_.elements(), experts_.shape); }

ExpertStatistics TrainProgram::expert_statistics(const std::vector<double>& all_sums) const {
  ExpertStatistics all;
  if (!experts_.defined()) return all;
  const int64_t e = options_.model.moe.num_experts;
  for (int64_t layer = 0; layer < experts_.shape[0]; ++layer) {
    const bool moe = options_.model.has_experts(layer);
    const double* sums = all_sums.data() + 2 + squares_.elements() + layer * experts_.cols();
    all.chosen.emplace_back(sums, moe ? sums + e : sums);
    all.kept.emplace_back(sums + e, moe ? sums + 2 * e : sums + e);
    all.balance_loss += sums[2 * e];
    all.z_loss += sums[2 * e + 1];
    if (options_.dispatch.row_budget == 0) continue;
    all.beyond_rows.push_back(sums[2 * e + 2]);
    all.beyond_slices.push_back(sums[2 * e + 3]);
  }
  return all;
}

}  // namespace ltrain
