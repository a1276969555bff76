// What ranks that have the same parameters keep of each other's shards: the stages of ZeRO
// (arXiv:1910.02054).
//
// A stage shards what the stage before it shards, and one thing more. Over which ranks is a matter of the
// mesh (Mesh::split_levels): all of them, or those of a shard group (hybrid sharding,
// arXiv:2304.11277, 3.2.2), with the same shards in every replicate group.
#pragma once
#include <cstdint>

namespace ltrain {

class ShardingPolicy {
 public:
  /// Every rank has everything: ZeRO-0.
  constexpr ShardingPolicy() = default;
  /// ZeRO-`stage`, of 0 to 3. `reshards`: of stage 3, weights are released after forward; else once a step.
  static constexpr ShardingPolicy zero(int64_t stage, bool reshards = true) {
    ShardingPolicy p;
    p.sharded_ = stage <= 0   ? Sharded::nothing
                 : stage == 1 ? Sharded::optimizer
                 : stage == 2 ? Sharded::gradients
                              : Sharded::weights;
    p.keeps_gathered_ = stage >= 3 && !reshards;
    return p;
  }

  /// A rank has optimizer states of its shard alone, and updates no other.
  constexpr bool shards_optimizer() const { return sharded_ >= Sharded::optimizer; }
  /// Gradients are reduced into a rank's shard after every micro-batch; else once a step, where they lie.
  constexpr bool shards_gradients() const { return sharded_ >= Sharded::gradients; }
  /// A rank has weights of its shard alone between steps, and gathers those of others for a step.
  constexpr bool shards_weights() const { return sharded_ >= Sharded::weights; }
  /// All are gathered when the step begins, and stay until its last backward; else each layer's before it
  /// runs, and released after it.
  constexpr bool keeps_gathered() const { return keeps_gathered_; }
  /// Weights are whole on every rank, and each has updated its shard of them: gathered after the update.
  constexpr bool gathers_updates() const { return shards_optimizer() && !shards_weights(); }

  constexpr int stage() const { return static_cast<int>(sharded_); }
  constexpr bool operator==(const ShardingPolicy&) const = default;

 private:
  enum class Sharded : uint8_t { nothing, optimizer, gradients, weights };
  Sharded sharded_ = Sharded::nothing;
  bool keeps_gathered_ = false;
};

}  // namespace ltrain
