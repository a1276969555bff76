// Layout of parameters: declaration, buckets, and the slices of a bucket that a rank keeps.
//
// Layers declare units: parameters that are contiguous in memory, so that q, k and v are three named tensors
// and one matrix. Units fill buckets in the reverse of their declaration, the order in which backward
// finishes them. A bucket is divided into one piece for each rank of the group `shard` (all ranks with the
// same parameters, or those of one node). Every piece is divided again over the ranks of `replicate`: a rank
// owns one such part. The placement of a parameter on other axes is part of its declaration (ParameterSpec).
#pragma once
#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

#include "parallel/mesh/groups.h"
#include "parallel/mesh/sharding_policy.h"
#include "parallel/optim/parameter_rule.h"
#include "parallel/optim/parameter_spec.h"

namespace ltrain {

inline constexpr Axis kEachGradientAxis[] = {Axis::data, Axis::context, Axis::replica, Axis::expert};

class ParameterLayout {
 public:
  struct Parameter {
    ParameterSpec spec;
    ParameterRule rule;
    int unit = 0, bucket = 0;
    int64_t offset = 0;  ///< offset in the bucket
  };
  struct Unit {
    int first = 0, count = 0;  ///< parameters
    int segment = 0, bucket = 0;
    int64_t layer = -1;  ///< in its pipeline stage; -1: outside layers
  };
  /// Common properties of the units of a bucket.
  struct Kind {
    AxisSet cut, sum;  ///< only axes with several ranks
    bool copied = false, tied = false;
    ParameterRule rule;   ///< without settings in which units of a bucket may differ
    bool expert = false;  ///< sharded over ranks with different tokens
    bool nf4 = false;     ///< frozen, and held in NF4
    int64_t group = 0;    ///< elements of quantized matrices that share a scale; 0: not quantized
    bool masked = false;  ///< the step's weights have a mask that moves
    int64_t strip = 1;    ///< elements that a rank has all or none of: four rows, with transposable masks
    /// Elements of which a rank has all or none.
    int64_t unit() const { return std::lcm(std::max<int64_t>(1, group), strip); }
    /// True if the step's weights are made from master weights by more than a cast.
    bool derived() const { return group > 0 || masked; }
    bool operator==(const Kind&) const = default;
  };
  struct Bucket {
    int index = 0;
    std::vector<int> units;
    Kind kind;
    int segment = 0;
    int64_t used = 0, padded = 0;
    int64_t piece = 0, own = 0;   ///< elements of a rank of `shard`, and of a rank of both groups
    bool shards_weights = false;  ///< a rank has weights of its piece only, but for a layer that runs
  };

  /// Declares a unit and returns the id of its first parameter. `layer`: as in Unit.
  int add(std::vector<ParameterSpec> unit, int segment, int64_t layer = -1);

  /// Chooses rules and fills buckets. A bucket is closed when it reaches `bucket_elements`.
  void fill(const Groups& groups, ShardingPolicy sharding, const OptimizerSettings& optimizer,
            int64_t bucket_elements);
  /// Divides a bucket into pieces of full blocks, for elements coded in blocks of `block`.
  void cut(int bucket, int64_t block);

  bool filled() const { return !buckets_.empty(); }
  int count() const { return static_cast<int>(parameters_.size()); }
  const Parameter& parameter(int id) const { return parameters_[static_cast<size_t>(id)]; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Unit>& units() const { return units_; }
  const Unit& unit_of(int id) const { return units_[static_cast<size_t>(parameter(id).unit)]; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const Bucket& bucket(int i) const { return buckets_[static_cast<size_t>(i)]; }
  int64_t elements() const;
  int find(std::string_view name) const;
  /// Rule of a parameter under these settings.
  ParameterRule rule_with(int id, const OptimizerSettings& optimizer) const;
  bool trains(int id) const { return parameter(id).rule.trains(); }

  // ---- ranks ----
  /// Ranks with the same data of a bucket as this one: first level, second level.
  const Group& shard_group(const Bucket& b) const {
    return b.kind.expert ? groups_->expert_shard : groups_->shard;
  }
  const Group& replicate_group(const Bucket& b) const {
    return b.kind.expert ? groups_->expert_replicate : groups_->replicate;
  }
  /// True if this rank's copy counts: first_copy() for the norm and checkpoints, adds() for sums over full
  /// tensors within its pipeline rank.
  bool first_copy(const Bucket& b) const;
  bool adds(const Bucket& b) const;
  /// True on the first of the ranks of a pipeline rank.
  bool first_of_all() const;
  /// True if this rank writes states of the full tensor.
  bool owns_whole(const ParameterSpec& spec) const;

  // ---- slices, in elements of a bucket ----
  int64_t piece_begin(const Bucket& b) const { return shard_group(b).rank() * b.piece; }
  int64_t own_begin(const Bucket& b) const { return piece_begin(b) + replicate_group(b).rank() * b.own; }
  /// Elements with states on this rank.
  int64_t stored_begin(const Bucket& b) const { return sharding_.shards_optimizer() ? piece_begin(b) : 0; }
  int64_t stored_count(const Bucket& b) const { return sharding_.shards_optimizer() ? b.piece : b.padded; }
  /// True if every rank has full weights and updates its piece of them, so that updates are gathered.
  bool gathers_updates(const Bucket& b) const { return sharding_.shards_optimizer() && !b.shards_weights; }
  /// True if a rank has states of only part of the bucket.
  bool stores_pieces(const Bucket& b) const {
    return sharding_.shards_optimizer() && shard_group(b).size() > 1;
  }
  /// Parameter ids in the order of their elements.
  std::vector<int> members(const Bucket& b) const;
  /// Calls f(id, from, n) for each parameter's part of [begin, begin + count) of the bucket.
  template <class F>
  void each_parameter(const Bucket& b, int64_t begin, int64_t count, F f) const {
    for (int id : members(b)) {
      const Parameter& p = parameter(id);
      const int64_t from = std::max(begin, p.offset),
                    to = std::min(begin + count, p.offset + p.spec.slice.elements());
      if (from < to) f(id, from, to - from);
    }
  }

  // ---- placements, on meta ----
  /// Axes over which pieces are sharded.
  AxisSet sharding_axes(const Kind& kind) const { return groups_->mesh.shard.without(kind.cut); }
  /// Sets the placement of a bucket's tensor. `sharded`: each rank of the first level has a piece.
  void place_bucket(Stream& s, const Bucket& b, const Tensor& t, bool sharded) const;
  /// Sets a placement on those of `axes` that have several ranks.
  void place_unit(TensorRecord& unit, AxisSet axes, Placement p) const;

 private:
  void choose_rules(const OptimizerSettings& optimizer);
  Kind kind_of(const ParameterSpec& spec) const;

  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  std::vector<Bucket> buckets_;
  const Groups* groups_ = nullptr;
  ShardingPolicy sharding_;
};

using Bucket = ParameterLayout::Bucket;

/// View of `n` parameters of a unit in the flat memory of their bucket as one matrix, with the placement of
/// `record`.
Tensor joined_view(const ParameterLayout& layout, Tensor flat, TensorRecord* record, int id, int n);

inline constexpr int64_t kBucketAlign = 16;  ///< elements: units start at a cache line or more
inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace ltrain
