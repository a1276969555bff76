// Order of samples of a run whose mix changes at named samples.
//
// A source keeps its place when the mix changes: its draws are counted over all stages, so that a later
// stage goes on where an earlier one left it, and its epochs are whole. The order is a function of the seed,
// the stages and the samples of the files.
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
  /// `samples`: per source, each at least 1. The first stage begins at sample 0, the others in ascending
  /// order. One stage of all sources is SampleOrder's order.
  StagedOrder(std::vector<int64_t> samples, const std::vector<OrderStage>& stages, uint64_t seed,
              bool shuffle = true);

  SampleRef operator()(int64_t global_sample) const;
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

  std::vector<int64_t> samples_;
  std::vector<Stage> stages_;
  uint64_t seed_;
  bool shuffle_;
};

}  // namespace ltrain::data
