// Sums over the ranks of a plan.
#include "runtime/plan/plan_types.h"

#include <algorithm>

namespace ltrain {

double Plan::step_seconds() const {
  double s = 0;
  for (const RankPlan& r : ranks) s = std::max(s, r.step_seconds);
  return s;
}

RankPlan::OtherStep RankPlan::largest_other() const {
  OtherStep most;
  for (const OtherStep& s : others)
    most = {.wire_bytes = std::max(most.wire_bytes, s.wire_bytes),
            .seconds = std::max(most.seconds, s.seconds),
            .passes = std::max(most.passes, s.passes)};
  return most;
}

double Plan::total_seconds() const {
  double evaluation = 0;
  for (const RankPlan& r : ranks) evaluation = std::max(evaluation, r.eval_seconds);
  double sum = evaluation * static_cast<double>(evaluations) +
               step_seconds() * static_cast<double>(train_steps - kinds.others(train_steps));
  for (size_t i = 0; i < kinds.other_steps.size(); ++i) {
    double seconds = 0;
    for (const RankPlan& r : ranks) seconds = std::max(seconds, r.others.at(i).seconds);
    sum += seconds * static_cast<double>(kinds.count(i + 1, train_steps));
  }
  if (sparse.other_step_seconds > 0)
    sum += (sparse.other_step_seconds - step_seconds()) * static_cast<double>(other_sparse_steps());
  return sum;
}

double Plan::model_flops() const {
  double flops = 0;
  for (int i = 0; i < stages; ++i) flops += ranks.at(static_cast<size_t>(i)).model_flops;
  return stages > 0 ? flops / stages * world / first_share : 0;
}

double Plan::mfu() const {
  const double s = step_seconds();
  return s <= 0 || peak_flops <= 0 ? 0 : model_flops() / world / (s * peak_flops);
}

int64_t Plan::network_bytes() const {
  int64_t sum = 0;
  if (!ranks.empty())
    for (const CollectivePlan& c : ranks[0].collectives) sum += c.network_bytes;
  return sum;
}

double RankPlan::exposed_comm_seconds() const {
  double sum = 0;
  for (const auto& [axis, seconds] : exposed) sum += seconds;
  return sum;
}

}  // namespace ltrain
