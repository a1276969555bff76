#include <algorithm>

#include "parallel/pipeline/simulate.h"

namespace ltrain::pipeline {

double least_makespan(const std::vector<int>& rank_of_stage, const StageCosts& costs, int micros,
                      bool splits_backward) {
  struct Rank {
    bool seen = false;
    double before_forward = 0, before_input = 0, before_weight = 0;  // sums over stages before its first
    double forward = 0, input = 0, weight = 0;                       // its own stages, for one micro-batch
  };
  std::vector<Rank> ranks(rank_of_stage.size());
  double forward = 0, input = 0, weight = 0;
  for (size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
    Rank& r = ranks[static_cast<size_t>(rank_of_stage[stage])];
    if (!r.seen) r.before_forward = forward, r.before_input = input, r.before_weight = weight;
    r.seen = true;
    r.forward += costs.forward[stage], forward += costs.forward[stage];
    r.input += costs.input[stage], input += costs.input[stage];
    r.weight += costs.weight[stage], weight += costs.weight[stage];
  }
  double least = 0;
  for (const Rank& r : ranks) {
    const double n = micros, whole = r.before_forward + n * (r.forward + r.input + r.weight);
    // The last action of a rank that another rank waits for belongs to its first stage.
    const double returned = splits_backward ? r.before_forward + n * (r.forward + r.input) + r.before_input
                                            : whole + r.before_input + r.before_weight;
    least = std::max({least, whole, returned});
  }
  return least;
}

}  // namespace ltrain::pipeline
