// The gradient reducer: flat memory of gradients, and their sums over ranks, as backward completes them.
//
// Gradients have one level or two. With one, `shard` has all ranks and the second level is a group of one.
// With two, a piece is summed inside, then across (with sharded gradients once a step, else once a bucket),
// and without ZeRO gathered inside: hybrid sharding (arXiv:2304.11277, 3.2.2) and the two-level all-reduce.
// Always the gradient norm is summed over what a rank owns, so that all stages give the same bits.
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

  /// Of a bucket, in their order.
  void allocate(const Bucket& b);
  /// Gradients are rounded to bf16 to be summed, on each level.
  void allocate_rounded();
  /// On meta, for checks of placements: how units lie.
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

  // ---- after it ----
  /// Elements [from, from + n) of a bucket, of those that this rank has states of.
  Tensor part(const Bucket& b, int64_t from, int64_t n) const;
  Tensor stored(const Bucket& b) const { return part(b, layout_.stored_begin(b), layout_.stored_count(b)); }
  /// What this rank owns; on meta as one of the parts of a sum.
  Tensor owned(const Bucket& b) const;
  /// Where gradients of this step are not summed: this rank's, of all of the bucket.
  const Tensor& unsummed(const Bucket& b) const { return at(b).all; }
  /// All ranks' parts behind each other, and back: UpdateContext::gather_grads.
  Tensor gather(const Bucket& b);
  void scatter(const Bucket& b, Tensor whole);
  /// Tensors of gradients, for set-up.
  void each_tensor(const std::function<void(const Tensor&)>& f) const;

 private:
  struct State {
    Tensor all;                // padded; with ZeRO-2 and 3 only during a backward
    Tensor piece;              // ZeRO-2 and 3
    int64_t pending = 0;       // contributions until the next reduction
    int64_t reductions = 0;    // ZeRO-2 and 3: into the piece, in this step
    AsyncHandle done, summed;  // of the first level, of the second
  };
  struct UnitState {
    bool touched = false;  // holds a contribution
    bool adding = false;   // `wide` holds contributions
    Tensor wide;           // gradients of 16-bit types: where those of a micro-batch are added up in f32;
                           // of frozen units: what a backward cannot leave out, until it is ready
    TensorRecord* record = nullptr;  // meta: how the unit lies
  };
  struct Pending {  // a reduction under way into a bucket's piece
    int bucket;
    Tensor grad;
    AsyncHandle done;
  };
  State& at(const Bucket& b) { return states_[static_cast<size_t>(b.index)]; }
  const State& at(const Bucket& b) const { return states_[static_cast<size_t>(b.index)]; }
  UnitState& unit(int u) { return units_[static_cast<size_t>(u)]; }

  bool widens() const { return c_.precision.grad != c_.precision.wide(); }
  GradBuffer accumulate_wide(UnitState& u, int id, int n);
  GradBuffer accumulate_frozen(UnitState& u, int id, int n);
  void reduce(const Bucket& b);
  void collect(const Bucket& b);
  void place_as_part(const Bucket& b);
  void clear_padding(const Bucket& b);
  bool alone(const Bucket& b) const;
  /// Gradients in 8 bits, which both stages have the same of, and the same errors.
  bool rounds_tied(const Bucket& b) const { return b.kind.tied && compressed_.compresses_gradients(b); }
  void settle(size_t keep);
  void sum_replicas(const Bucket& b, Tensor piece, const AsyncHandle& ready);
  void gather_reduced();

  StoreContext c_;
  const ParameterLayout& layout_;
  const StepRules& rules_;
  CompressedAllReduce& compressed_;
  std::vector<State> states_;     // by bucket
  std::vector<UnitState> units_;  // by unit
  std::vector<Pending> pending_;
  Tensor rounded_;        // gradients of the bucket that is summed, in bf16; the stream of sums has it
  Tensor rounded_piece_;  // likewise of the second level: the stream of replicas has it
  int summed_ = -1;       // two levels without ZeRO: bucket whose sum is on its way and not gathered
};

}  // namespace ltrain
