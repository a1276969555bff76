// Weights of a step, in flat buckets: full on every rank, or gathered before a layer runs and released after
// it (ZeRO-3). With ZeRO-1 and 2 a rank updates its piece of the full weights. The pieces of others are
// gathered at the begin of the next step, all at once, in the order in which layers run; a layer waits for
// its own gather only. ZeRO-3 that keeps gathered weights does the same, and releases them after the step's
// last backward. With ZeRO-3 some layers may have full weights, as with ZeRO-2.
#pragma once
#include <vector>

#include "kernels/matmul/nf4.h"
#include "parallel/zero/offloaded_weights.h"
#include "parallel/zero/parameter_layout.h"
#include "parallel/zero/store_context.h"

namespace ltrain {

class Weights {
 public:
  /// `quantization`: with the dtype of scales.
  Weights(const StoreContext& context, const ParameterLayout& layout, OffloadedWeights& offloaded,
          const QuantizationSettings& quantization);

  /// Allocates a bucket, in the order of buckets; lay_out_offloaded() after the last one.
  void allocate(const Bucket& b);
  void lay_out_offloaded();
  /// On meta, for placement checks: creates a record for each unit.
  void make_records();

  /// `n` parameters of one unit as one matrix. With ZeRO-3 only while their segment is gathered.
  Tensor view(int id, int n) const;
  /// The same of a bucket in NF4.
  Nf4Matrix nf4_view(int id, int n) const;
  void gather_segment(int segment, int next);
  void release_segment(int segment);
  /// ZeRO-1 and 2, after an update or with `always`: starts to gather the pieces that others updated. ZeRO-3
  /// that keeps gathered weights: starts to gather all. gather_segment waits for its segment.
  void begin_step(bool always = false);
  /// Does what begin_step does for weights that are full on every rank.
  void renew(bool always = false);
  /// Replaces begin_step after captured work that did it.
  void begin_replayed_step();
  /// ZeRO-1 and 2, outside a step: gathers pieces of others that are out of date, and waits.
  void complete();
  /// Called after the last use in a step: waits for unused gathers, and releases kept weights.
  void end_step();
  /// On meta: seconds that the compute stream has waited so far for gathers of begin_step.
  double waited_for_updates() const { return waited_for_updates_; }

  // ---- between steps ----
  /// Weights as this rank holds them: full, or its piece.
  const Tensor& held(const Bucket& b) const;
  /// Magnitudes of a bucket in NF4; held(b) has its codes.
  const Tensor& held_absmax(const Bucket& b) const;
  /// The part of them that this rank updates; and its elements [from, from + n) of the bucket.
  Tensor updated(const Bucket& b) const;
  Tensor part(const Bucket& b, int64_t from, int64_t n) const;
  Nf4Matrix nf4_part(const Bucket& b, int64_t from, int64_t n) const;
  /// On meta: gives `t` the placement of held(b), for offloaded weights of which t is a part.
  void place_like_held(const Bucket& b, const Tensor& t) const;

  /// Sets the part of a bucket that this rank updates to the weights that are made from `from`: quantized
  /// ones, where `from` may be that part itself, or masked ones by the mask that the part has.
  void derive(const Bucket& b, const Tensor& from) const;

  // ---- after this rank has written its part ----
  /// On meta: marks elements of a bucket as being written by the ranks with their states.
  void begin_writing(const Bucket& b);
  /// On meta: gives this rank's part the placement that updates leave.
  void end_writing(const Bucket& b);
  /// ZeRO-1 and 2: enqueues the exchange of written pieces with other ranks; wait_published waits for all.
  void publish(const Bucket& b);
  void wait_published();
  /// Called after an update: with ZeRO-1 and 2 each rank has only its own new piece until the next step.
  void end_update();
  /// Called when others' pieces are up to date.
  void note_complete();
  /// On meta: checks that every rank holds what its ZeRO stage requires; `pieces`: with ZeRO-1 and 2 only its
  /// piece. `when`: for messages.
  void require(std::string_view when, bool pieces = false) const;

 private:
  struct State {
    Tensor whole;  // padded; with ZeRO-3 only while in use
    Tensor piece;  // ZeRO-3; in offload memory if offloaded
    // magnitudes of a bucket in NF4, whose codes are `whole` and `piece`
    Tensor absmax, absmax_piece;
    Tensor fetched;    // piece fetched from offload memory, for the all-gather
    AsyncHandle done;  // gather in flight
    bool gathering = false;
    // bit mask of the passes (MicroBatchOverlap::side) that gathered it and have not released it
    unsigned users = 0;
  };
  State& at(const Bucket& b) { return states_[static_cast<size_t>(b.index)]; }
  const State& at(const Bucket& b) const { return states_[static_cast<size_t>(b.index)]; }
  /// True if pieces of other ranks are gathered at the begin of a step.
  bool comes_later(const Bucket& b) const;
  void gather(const Bucket& b);
  void gather_nf4(const Bucket& b);
  void fetch(const Bucket& b, const Tensor& to);
  std::vector<const Bucket*> in_order() const;
  void start_gathers();
  void gather_first();
  void wait_gathered(const Bucket& b);
  void wait_all();
  void place_units(const Bucket& b, Placement p);

  StoreContext c_;
  const ParameterLayout& layout_;
  OffloadedWeights& offloaded_;
  const QuantizationSettings& quantization_;
  std::vector<State> states_;           // indexed by bucket
  std::vector<TensorRecord*> records_;  // indexed by unit, on meta
  bool stale_ = true;      // the next step begins with gathers; initially true, so that all steps have them
  bool complete_ = false;  // others' pieces are as new as this rank's
  bool keeping_ = false;   // gathered weights stay until end_step
  double waited_for_updates_ = 0;
};

}  // namespace ltrain
