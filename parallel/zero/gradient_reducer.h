// The gradient reducer: flat grad buffers, and their sums over ranks, as backward completes them.
//
// Gradients are summed on one level or on two. On one level, `shard` has all ranks and the second level is a
// group of one. On two levels, a piece is summed within the shard group, then over the replicate group (with
// sharded gradients once a step, else once a bucket), and without ZeRO gathered within the shard group:
// hybrid sharding (arXiv:2304.11277, 3.2.2) and the two-level all-reduce. The gradient norm is always summed
// over the elements that a rank owns, so that all stages give the same bits.
#pragma once
#include <vector>

#include "parallel/zero/compressed_all_reduce.h"
#include "parallel/zero/grad_buffer.h"
#include "parallel/zero/parameter_layout.h"
#include "parallel/zero/step_rules.h"
#include "parallel/zero/store_context.h"

namespace ltrain {

class GradientReducer {
 public:
  GradientReducer(const StoreContext& context, const ParameterLayout& layout, const StepRules& rules,
                  CompressedAllReduce& compressed);

  /// Allocates a bucket; called in the order of buckets.
  void allocate(const Bucket& b);
  /// Allocates buffers for gradients rounded to bf16 before the sums of each level.
  void allocate_rounded();
  /// On meta, for placement checks: creates a record for each unit.
  void make_records();

  // ---- backward ----
  void begin_step();
  Tensor view(int id, int n) const;
  GradBuffer accumulate(int id, int n);
  void ready(int id);
  void replayed(int64_t micros);
  void end_reductions() { gather_reduced(); }
  /// Waits for the reductions.
  void finish();

  // ---- after backward ----
  /// Gradients of elements [from, from + n) of a bucket, with states on this rank.
  Tensor part(const Bucket& b, int64_t from, int64_t n) const;
  Tensor stored(const Bucket& b) const { return part(b, layout_.stored_begin(b), layout_.stored_count(b)); }
  /// Gradients that this rank owns; on meta placed as a summand.
  Tensor owned(const Bucket& b) const;
  /// This rank's gradients of the full bucket in a step that does not sum them.
  const Tensor& unsummed(const Bucket& b) const { return at(b).all; }
  /// Gathers the parts of all ranks one after the other, and the inverse: UpdateContext::gather_grads.
  Tensor gather(const Bucket& b);
  void scatter(const Bucket& b, Tensor whole);
  /// Calls f with all gradient tensors, for set-up.
  void each_tensor(const std::function<void(const Tensor&)>& f) const;

 private:
  struct State {
    Tensor all;                // padded; with ZeRO-2 and 3 only during a backward
    Tensor piece;              // ZeRO-2 and 3
    int64_t pending = 0;       // contributions until the next reduction
    int64_t reductions = 0;    // ZeRO-2 and 3: reductions into the piece in this step
    AsyncHandle done, summed;  // first level, second level
  };
  struct UnitState {
    bool touched = false;  // has a contribution
    bool adding = false;   // `wide` has contributions
    /// 16-bit gradients: f32 sum of one micro-batch's contributions. Frozen units: gradients that a backward
    /// cannot leave out, until the unit is ready.
    Tensor wide;
    TensorRecord* record = nullptr;  // meta: placement of the unit
  };
  struct Pending {  // a reduction in flight into a bucket's piece
    int bucket;
    Tensor grad;
    AsyncHandle done;
  };
  /// Sum of a bucket over the ranks of the first level.
  enum class BucketSum : uint8_t {
    later,       ///< not when it is ready: ranks sum its moment instead, or stages sum first
    none,        ///< the level has one rank
    compressed,  ///< in 8 bits
    pieces,      ///< each rank gets the sum of its piece: ZeRO, or two levels
    whole        ///< each rank gets the full sum
  };
  State& at(const Bucket& b) { return states_[static_cast<size_t>(b.index)]; }
  const State& at(const Bucket& b) const { return states_[static_cast<size_t>(b.index)]; }
  UnitState& unit(int u) { return units_[static_cast<size_t>(u)]; }

  bool widens() const { return c_.precision.grad != c_.precision.wide(); }
  GradBuffer accumulate_wide(UnitState& u, int id, int n);
  GradBuffer accumulate_frozen(UnitState& u, int id, int n);
  void reduce(const Bucket& b);
  BucketSum sum_of(const Bucket& b) const;
  void sum_replicated(Stream& on, const Bucket& b);
  void sum_level(Stream& on, const Bucket& b, BucketSum how);
  void collect(const Bucket& b);
  void place_as_part(const Bucket& b);
  void clear_padding(const Bucket& b);
  bool alone(const Bucket& b) const;
  /// True if gradients are in 8 bits and tied: both stages have the same gradients, and the same errors.
  bool rounds_tied(const Bucket& b) const { return b.kind.tied && compressed_.compresses_gradients(b); }
  void finish_sums(size_t keep);
  void sum_replicas(const Bucket& b, Tensor piece, const AsyncHandle& ready);
  void gather_reduced();

  StoreContext c_;
  const ParameterLayout& layout_;
  const StepRules& rules_;
  CompressedAllReduce& compressed_;
  std::vector<State> states_;     // indexed by bucket
  std::vector<UnitState> units_;  // indexed by unit
  std::vector<Pending> pending_;
  Tensor rounded_;        // bf16 gradients of the bucket being summed; used by the stream of sums
  Tensor rounded_piece_;  // bf16 piece of the second level; used by the stream of replicas
  int summed_ = -1;       // two levels without ZeRO: bucket with a sum in flight, not gathered yet
};

}  // namespace ltrain
