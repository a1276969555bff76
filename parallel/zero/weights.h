// The weights that a step computes with, in flat buckets: whole on every rank, or gathered before a layer
// runs and released after it (ZeRO-3). With ZeRO-1 and 2 a rank has updated its piece of whole weights: the
// pieces of others come at the begin of the next step, all gathers at once, in the order in which layers run,
// and a layer waits for its own alone. So they do with ZeRO-3 that keeps what it gathers, and go after the
// step's last backward.
#pragma once
#include <vector>

#include "parallel/zero/offloaded_weights.h"
#include "parallel/zero/parameter_layout.h"
#include "parallel/zero/store_context.h"

namespace ltrain {

class Weights {
 public:
  Weights(const StoreContext& context, const ParameterLayout& layout, OffloadedWeights& offloaded);

  /// Of a bucket, in their order; when all have theirs, what lies in offload memory.
  void allocate(const Bucket& b);
  void lay_out_offloaded();
  /// On meta, for checks of placements: how units lie.
  void make_records();

  /// `n` parameters of one unit as one matrix. With ZeRO-3 only while their segment is gathered.
  Tensor view(int id, int n) const;
  void gather_segment(int segment, int next);
  void release_segment(int segment);
  /// ZeRO-1 and 2, where an update was made since or `always`: starts to gather what others have updated.
  /// ZeRO-3 that keeps it: starts to gather everything. gather_segment waits for its segment.
  void begin_step(bool always = false);
  /// In the place of begin_step, which captured work did again.
  void begin_replayed_step();
  /// ZeRO-1 and 2, for what is no pass of a step: gathers and waits, where others' pieces are those of
  /// before.
  void complete();
  /// After the last use in a step: waits for gathers that nothing has waited for, and releases what is kept.
  void end_step();
  /// On meta: seconds that the compute stream has waited so far for what begin_step gathers.
  double waited_for_updates() const { return waited_for_updates_; }

  // ---- between steps ----
  /// As this rank holds them: whole, or its piece.
  const Tensor& held(const Bucket& b) const;
  /// Of these, those that this rank updates; and elements [from, from + n) of the bucket, of them.
  Tensor updated(const Bucket& b) const;
  Tensor part(const Bucket& b, int64_t from, int64_t n) const;
  /// On meta: `t` lies as held(b), where that is in offload memory and t is a part of it.
  void place_like_held(const Bucket& b, const Tensor& t) const;

  // ---- after this rank has written its part ----
  /// On meta: elements of a bucket are being written by the ranks that have states of them.
  void begin_writing(const Bucket& b);
  /// On meta: this rank's part lies again as updates leave it.
  void end_writing(const Bucket& b);
  /// ZeRO-1 and 2: what this rank has written, to the others, and theirs. Enqueued; wait_published waits for
  /// all.
  void publish(const Bucket& b);
  void wait_published();
  /// After an update: with ZeRO-1 and 2 each rank has its own piece of it until the next step.
  void end_update();
  /// Others' pieces are here, by whatever way they came.
  void note_complete();
  /// On meta: every rank has again what its stage of ZeRO leaves it; `pieces`: ZeRO-1 and 2 its piece alone.
  /// `when`: for messages.
  void require(std::string_view when, bool pieces = false) const;

 private:
  struct State {
    Tensor whole;      // padded; with ZeRO-3 only while in use
    Tensor piece;      // ZeRO-3; in offload memory when offloaded
    Tensor fetched;    // from there, on its way to all ranks
    AsyncHandle done;  // of the gather in flight
    bool gathering = false;
    unsigned users = 0;  // bits of the passes (Interleave::side) that gathered it and have not released it
  };
  State& at(const Bucket& b) { return states_[static_cast<size_t>(b.index)]; }
  const State& at(const Bucket& b) const { return states_[static_cast<size_t>(b.index)]; }
  /// Its pieces come from others at the begin of a step.
  bool comes_later(const Bucket& b) const;
  void gather(const Bucket& b);
  void fetch(const Bucket& b, const Tensor& to);
  std::vector<const Bucket*> in_order() const;
  void start_gathers();
  void wait_gathered(const Bucket& b);
  void wait_all();
  void place_units(const Bucket& b, Placement p);

  StoreContext c_;
  const ParameterLayout& layout_;
  OffloadedWeights& offloaded_;
  std::vector<State> states_;           // by bucket
  std::vector<TensorRecord*> records_;  // by unit, on meta
  bool stale_ = true;  // the next step begins with gathers: so that all steps have them, the first one too
  bool complete_ = false;  // others' pieces are as new as this rank's
  bool keeping_ = false;   // what is gathered stays, until end_step
  double waited_for_updates_ = 0;
};

}  // namespace ltrain
