#include "runtime/data/staged_order.h"

#include <algorithm>

#include "base/error.h"

namespace ltrain::data {

StagedOrder::StagedOrder(size_t sources, const std::vector<OrderStage>& stages) {
  LT_CHECK(!stages.empty() && stages[0].first_sample == 0,
           "expected a first stage from sample 0, got {} stages", stages.size());
  for (const OrderStage& s : stages) {
    LT_CHECK(s.sources.size() == s.weights.size(), "expected a weight for each of {} sources, got {}",
             s.sources.size(), s.weights.size());
    LT_CHECK(stages_.empty() || s.first_sample > stages_.back().first_sample,
             "expected stages in ascending order, got one from sample {}", s.first_sample);
    std::vector<int64_t> earlier;
    for (const int source : s.sources) {
      LT_CHECK(source >= 0 && source < static_cast<int>(sources), "expected a source below {}, got {}",
               sources, source);
      earlier.push_back(stages_.empty() ? 0 : draws_before(source, s.first_sample));
    }
    stages_.push_back({s.first_sample, Blend(s.weights), s.sources, std::move(earlier)});
  }
}

const StagedOrder::Stage& StagedOrder::stage_of(int64_t global_sample) const {
  const auto after = std::upper_bound(stages_.begin(), stages_.end(), global_sample,
                                      [](int64_t sample, const Stage& s) { return sample < s.first_sample; });
  return *(after - 1);
}

Blend::Draw StagedOrder::operator()(int64_t global_sample) const {
  LT_CHECK(global_sample >= 0, "expected a sample of at least 0, got {}", global_sample);
  const Stage& stage = stage_of(global_sample);
  const Blend::Draw draw = stage.blend(global_sample - stage.first_sample);
  return {stage.sources[draw.source], stage.earlier[draw.source] + draw.index};
}

int64_t StagedOrder::draws_before(int source, int64_t global_samples) const {
  int64_t draws = 0;
  for (size_t i = 0; i < stages_.size() && stages_[i].first_sample < global_samples; ++i) {
    const Stage& s = stages_[i];
    const int64_t end =
        i + 1 < stages_.size() ? std::min(global_samples, stages_[i + 1].first_sample) : global_samples;
    for (size_t k = 0; k < s.sources.size(); ++k)
      if (s.sources[k] == source) draws += s.blend.draws_before(static_cast<int>(k), end - s.first_sample);
  }
  return draws;
}

int64_t StagedOrder::memory_bytes() const {
  int64_t bytes = 0;
  for (const Stage& s : stages_) bytes += s.blend.memory_bytes();
  return bytes;
}

}  // namespace ltrain::data
