// Sharding over ranks with the same parameters: the stages of ZeRO (arXiv:1910.02054).
//
// Each stage shards one thing more than the stage before. The mesh chooses the ranks (Mesh::split_levels):
// all of them, or a shard group (hybrid sharding, arXiv:2304.11277, 3.2.2), with the same shards in every
// replicate group.
#pragma once
#include <cstdint>

namespace ltrain {

class ShardingPolicy {
 public:
  /// ZeRO-0: every rank has everything.
  constexpr ShardingPolicy() = default;
  /// ZeRO-`stage`, 0 to 3. `reshards`: stage 3 releases weights after forward; otherwise once a step.
  /// `whole_layers`: first layers of each pipeline stage that stage 3 shards as stage 2 does.
  static constexpr ShardingPolicy zero(int64_t stage, bool reshards = true, int64_t whole_layers = 0) {
    ShardingPolicy p;
    p.sharded_ = stage <= 0   ? Sharded::nothing
                 : stage == 1 ? Sharded::optimizer
                 : stage == 2 ? Sharded::gradients
                              : Sharded::weights;
    p.keeps_gathered_ = stage >= 3 && !reshards;
    p.whole_layers_ = stage >= 3 ? whole_layers : 0;
    return p;
  }

  /// True if a rank has optimizer states of its shard only, and updates only that.
  constexpr bool shards_optimizer() const { return sharded_ >= Sharded::optimizer; }
  /// True if gradients are reduced into a rank's shard after every micro-batch; otherwise once a step, in
  /// place.
  constexpr bool shards_gradients() const { return sharded_ >= Sharded::gradients; }
  /// True if a rank has weights of its shard only between steps, and gathers the others for a step.
  constexpr bool shards_weights() const { return sharded_ >= Sharded::weights; }
  /// True if a rank has weights of its shard only in a layer, counted in its pipeline stage from 0; -1:
  /// parameters outside layers.
  constexpr bool shards_weights(int64_t layer) const {
    return shards_weights() && (layer < 0 || layer >= whole_layers_);
  }
  /// True if all weights are gathered at the begin of a step, and stay until its last backward; otherwise
  /// each layer's are gathered before it runs, and released after it.
  constexpr bool keeps_gathered() const { return keeps_gathered_; }

  constexpr int stage() const { return static_cast<int>(sharded_); }
  constexpr bool operator==(const ShardingPolicy&) const = default;

 private:
  enum class Sharded : uint8_t { nothing, optimizer, gradients, weights };
  Sharded sharded_ = Sharded::nothing;
  bool keeps_gathered_ = false;
  int64_t whole_layers_ = 0;
};

}  // namespace ltrain
