// Experts that no token of a step chose. With OffloadSettings::skip_untouched an update passes over them:
// their moments and weights stay as they are, as rows without a gradient do in PyTorch's SparseAdam.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "parallel/zero/parameter_layout.h"

namespace ltrain {

class UntouchedExperts {
 public:
  explicit UntouchedExperts(const ParameterLayout& layout) : layout_(layout) {}

  /// `tokens`: for each layer, the number of tokens of the step that chose each expert, the same on every
  /// rank. Empty: the update passes over nothing.
  void set(std::vector<std::vector<double>> tokens) { tokens_ = std::move(tokens); }

  /// Calls f(from, n) for the parts of [begin, begin + count) of the bucket that are updated, in order.
  template <class F>
  void each_updated(const Bucket& b, int64_t begin, int64_t count, F f) const {
    int64_t at = begin;
    if (!tokens_.empty())
      layout_.each_parameter(b, begin, count, [&](int id, int64_t from, int64_t n) {
        each_untouched(id, from, from + n, [&](int64_t first, int64_t last) {
          if (first > at) f(at, first - at);
          at = last;
        });
      });
    if (at < begin + count) f(at, begin + count - at);
  }

 private:
  /// Calls f(first, last) for each untouched expert's part of elements [begin, end) of a parameter's bucket.
  template <class F>
  void each_untouched(int id, int64_t begin, int64_t end, F f) const {
    const auto& p = layout_.parameter(id);
    if (p.spec.expert_layer < 0) return;
    const std::vector<double>& tokens = tokens_[static_cast<size_t>(p.spec.expert_layer)];
    const int64_t experts = p.spec.slice.extent[0], each = p.spec.slice.elements() / experts;
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t first = std::max(begin, p.offset + e * each),
                    last = std::min(end, p.offset + (e + 1) * each);
      if (first < last && tokens[static_cast<size_t>(p.spec.slice.offset[0] + e)] == 0) f(first, last);
    }
  }

  const ParameterLayout& layout_;
  std::vector<std::vector<double>> tokens_;
};

}  // namespace ltrain
