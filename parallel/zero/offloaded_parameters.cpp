// Values of parameters in offload memory between a gather and the next (ZeRO-Infinity, arXiv:2104.07857): a
// rank brings its piece of a layer in before the layer's all-gather, as early as the gather is asked for, and
// writes it back after the update.
#include "kernels/meta/placement_rules.h"
#include "parallel/zero/parameter_store.h"

namespace ltrain {

/// Whether the next bucket's values are away: as many of those so far as the fraction says, evenly, so that
/// transfers find compute to hide behind.
bool ParameterStore::leaves(const Bucket& b, int64_t& all, int64_t& offloaded) const {
  if (!layout_.sharding.shards_weights() || layout_.offload.params <= 0) return false;
  all += b.piece;
  if (static_cast<double>(offloaded) + 0.5 * static_cast<double>(b.piece) >
      layout_.offload.params * static_cast<double>(all))
    return false;
  offloaded += b.piece;
  return true;
}

/// For set-up and checkpoints pieces that are away are tensors like others, of the offload memory.
void ParameterStore::lay_out_offloaded() {
  if (offloaded_bytes_ == 0) return;
  LT_CHECK(layout_.offload_params, "offloaded parameters without a place for them");
  layout_.offload_params->reserve(offloaded_bytes_);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& b = buckets_[i];
    if (b.offloaded < 0) continue;
    Tensor& t = b.value_piece;
    t.dtype = layout_.precision.compute;
    t.device = compute_->device();
    t.shape = {b.piece};
    t.data = layout_.offload_params->at(b.offloaded);
    if (!compute_->meta()) continue;
    t.record = compute_->meta()->new_record(fmt::format("parameters, bucket {}", i));
    t.record->written = true;
    place_bucket(b, t, shard_group(b).size() > 1);
  }
}

/// On meta: `t` lies as the bucket's values.
Tensor ParameterStore::like_values(const Bucket& b, Tensor t) const {
  if (compute_->meta()) {
    t.record->place = b.value_piece.record->place;
    t.record->written = true;
  }
  return t;
}

/// b.done: when they are there.
void ParameterStore::fetch_values(Bucket& b, const Tensor& to) {
  OffloadMemory& slow = *layout_.offload_params;
  slow.stream().wait(compute_->record());  // which may have had the memory
  slow.fetch(like_values(b, to), b.offloaded);
  b.done = slow.stream().record();
}

}  // namespace ltrain
