// Draws of a run whose mix changes at named samples.
//
// A source keeps its place when the mix changes: its draws are counted over all stages, so that a later
// stage goes on where an earlier one left it, and its epochs are whole. The draws are a function of the
// stages alone; WindowOrder finds their samples.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/data/sample_order.h"

namespace ltrain::data {

/// Mix from a global sample on. `sources`: their numbers, each once.
struct OrderStage {
  int64_t first_sample = 0;
  std::vector<int> sources;
  std::vector<double> weights;
};

class StagedOrder {
 public:
  /// `sources`: number of them. The first stage begins at sample 0, the others in ascending order.
  StagedOrder(size_t sources, const std::vector<OrderStage>& stages);

  /// Source of a global sample, and its draw there.
  Blend::Draw operator()(int64_t global_sample) const;
  /// Samples of `source` among the first `global_samples`.
  int64_t draws_before(int source, int64_t global_samples) const;
  int64_t memory_bytes() const;

 private:
  struct Stage {
    int64_t first_sample;
    Blend blend;
    std::vector<int> sources;      // numbers of the blend's sources
    std::vector<int64_t> earlier;  // draws of each before the stage
  };
  const Stage& stage_of(int64_t global_sample) const;

  std::vector<Stage> stages_;
};

}  // namespace ltrain::data
