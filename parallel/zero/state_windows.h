// Windows: parts of a bucket that are fetched from offload memory for an update and written back after it,
// through a ring of buffers. They have states, or weights (ZeRO-3), or both. The result of an element does
// not depend on windows.
#pragma once
#include <vector>

#include "parallel/zero/gradient_reducer.h"
#include "parallel/zero/offloaded_weights.h"
#include "parallel/zero/optimizer_states.h"
#include "parallel/zero/untouched_experts.h"

namespace ltrain {

class StateWindows {
 public:
  StateWindows(const StoreContext& context, const ParameterLayout& layout, const Weights& weights,
               const OptimizerStates& states, const OffloadedWeights& offloaded,
               const OffloadSettings& settings);

  /// Lists the windows of all buckets, in the order of updates, and allocates the ring.
  void allocate();

  /// Starts to fetch the first windows, at the begin of their step; if the update chooses among windows, no
  /// effect.
  void fetch_ahead();
  /// Invalidates the ring, after weights or states were written directly.
  void forget() { ahead_ = false; }
  /// Lists the windows of this update: without those in which nothing is updated, if settings say so.
  void begin_update(const UntouchedExperts& untouched);
  int64_t moved_bytes() const { return moved_; }  ///< fetched and written back so far
  bool any() const { return !windows_.empty(); }

  /// Calls f(from, n, e) for the next windows, those of `b`: elements [from, from + n) of the bucket, with
  /// all of `e` on the device except gradients, which f sets. Changes of f are written back.
  template <class F>
  void each(const Bucket& b, F f) {
    for (; is_of(b); ++next_) {
      const Window& w = windows_[order_[next_]];
      Elements e = arrived(b);
      f(w.from, w.n, e);
      leave(b, e);
    }
  }
  /// Skips the windows of a bucket that is not updated.
  void pass(const Bucket& b);

 private:
  struct Window {
    int bucket;
    int64_t from, n;  // range in the bucket
    bool states;      // has states; has weights if the bucket's are offloaded
  };
  struct Slot {                  // slot of the ring
    std::vector<Tensor> states;  // master (if any), then moments
    Tensor weights;
    Event fetched, weights_fetched;
  };
  bool is_of(const Bucket& b) const {
    return next_ < order_.size() && windows_[order_[next_]].bucket == b.index;
  }
  void list(const Bucket& b);
  void fetch_first();
  void fetch(size_t index);
  Slot& slot() { return ring_[next_ % ring_.size()]; }
  Elements arrived(const Bucket& b);
  void leave(const Bucket& b, const Elements& e);

  StoreContext c_;
  const ParameterLayout& layout_;
  const Weights& weights_;
  const OptimizerStates& states_;
  const OffloadedWeights& offloaded_;
  int64_t elements_;  // size of a window
  bool moves_states_, skips_;
  std::vector<Window> windows_;
  std::vector<size_t> order_;  // windows of this update
  int64_t moved_ = 0;
  std::vector<Slot> ring_;
  size_t next_ = 0;
  bool ahead_ = false;
};

}  // namespace ltrain
