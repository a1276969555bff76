#include "parallel/zero/offloaded_weights.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

OffloadedWeights::OffloadedWeights(const StoreContext& context, const ParameterLayout& layout,
                                   double fraction, OffloadAccess& access)
    : c_(context),
      layout_(layout),
      fraction_(fraction),
      access_(access),
      offsets_(layout.buckets().size(), -1) {}

bool OffloadedWeights::choose(const Bucket& b) {
  if (!b.shards_weights || fraction_ <= 0) return false;
  asked_ += b.piece;
  if (static_cast<double>(chosen_) + 0.5 * static_cast<double>(b.piece) >
      fraction_ * static_cast<double>(asked_))
    return false;
  chosen_ += b.piece;
  offsets_[static_cast<size_t>(b.index)] = access_.param_bytes;
  access_.param_bytes += round_up(b.piece * dtype_size(c_.precision.compute), kOffloadBlock);
  return true;
}

void OffloadedWeights::reserve() {
  if (access_.param_bytes == 0) return;
  LT_CHECK(access_.params, "expected an offload memory for {} bytes of parameters, got none",
           access_.param_bytes);
  access_.params->reserve(access_.param_bytes);
}

Tensor OffloadedWeights::piece(const Bucket& b) const {
  Tensor t;
  t.dtype = c_.precision.compute;
  t.device = c_.compute.device();
  t.shape = {b.piece};
  t.data = access_.params->at(offset(b, 0));
  if (!c_.meta()) return t;
  t.record = c_.compute.meta()->new_record(fmt::format("parameters, bucket {}", b.index));
  t.record->written = true;
  layout_.place_bucket(c_.compute, b, t, layout_.shard_group(b).size() > 1);
  return t;
}

void OffloadedWeights::fetch(const Bucket& b, int64_t at, const Tensor& t) const {
  access_.params->fetch(t, offset(b, at));
}

void OffloadedWeights::store(const Bucket& b, int64_t at, const Tensor& t) const {
  access_.params->store(t, offset(b, at));
}

}  // namespace ltrain
