// Weights in offload memory between gathers (ZeRO-Infinity, arXiv:2104.07857). A rank fetches its piece of a
// layer before the layer's all-gather, as early as the gather is requested, and writes it back after the
// update.
#pragma once
#include <vector>

#include "parallel/zero/offload_access.h"
#include "parallel/zero/parameter_layout.h"
#include "parallel/zero/store_context.h"

namespace ltrain {

class OffloadedWeights {
 public:
  /// `fraction`: share of the buckets; `access` gets the bytes.
  OffloadedWeights(const StoreContext& context, const ParameterLayout& layout, double fraction,
                   OffloadAccess& access);

  /// True if this bucket's weights are offloaded; called once for each bucket, in order. Chosen buckets are
  /// spread evenly, so that transfers overlap with compute.
  bool choose(const Bucket& b);
  /// Called after choose() of all buckets.
  void reserve();
  bool has(const Bucket& b) const { return offsets_[static_cast<size_t>(b.index)] >= 0; }
  /// This rank's piece in offload memory, for set-up and checkpoints; used like any tensor.
  Tensor piece(const Bucket& b) const;

  /// Enqueue on stream() a transfer of elements from `at` of the piece on, to `t` or back.
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
  std::vector<int64_t> offsets_;    // for each bucket: offset of its weights; -1: not offloaded
  int64_t asked_ = 0, chosen_ = 0;  // elements
};

}  // namespace ltrain
