// Weights in offload memory between a gather and the next (ZeRO-Infinity, arXiv:2104.07857): a rank brings
// its piece of a layer in before the layer's all-gather, as early as the gather is asked for, and writes it
// back after the update.
#pragma once
#include <vector>

#include "parallel/zero/offload_access.h"
#include "parallel/zero/parameter_layout.h"
#include "parallel/zero/store_context.h"

namespace ltrain {

class OffloadedWeights {
 public:
  /// `fraction`: of the buckets; `access` learns of the bytes.
  OffloadedWeights(const StoreContext& context, const ParameterLayout& layout, double fraction,
                   OffloadAccess& access);

  /// Whether this bucket's weights leave, asked once of each in their order: as many so far as the fraction
  /// says, evenly, so that transfers find compute to hide behind.
  bool choose(const Bucket& b);
  /// When all have been asked.
  void reserve();
  bool has(const Bucket& b) const { return offsets_[static_cast<size_t>(b.index)] >= 0; }
  /// This rank's piece there: for set-up and checkpoints a tensor like others.
  Tensor piece(const Bucket& b) const;

  /// Enqueue on stream(): elements from `at` of the piece on, to `t` or from it.
  void fetch(const Bucket& b, int64_t at, const Tensor& t) const;
  void store(const Bucket& b, int64_t at, const Tensor& t) const;
  Stream& stream() const { return access_.params->stream(); }

 private:
  int64_t offset(const Bucket& b, int64_t at) const {
    return offsets_[static_cast<size_t>(b.index)] + at * dtype_size(c_.precision.compute);
  }

  StoreContext c_;
  const ParameterLayout& layout_;
  double fraction_;
  OffloadAccess& access_;
  std::vector<int64_t> offsets_;    // by bucket: where its weights lie; -1: they do not
  int64_t asked_ = 0, chosen_ = 0;  // elements
};

}  // namespace ltrain
