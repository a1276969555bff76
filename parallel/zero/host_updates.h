// Updates on the host's cores of elements whose states are in host memory: gradients leave the device and new
// weights return, through two windows of host memory (ZeRO-Offload, arXiv:2101.06840). One window is computed
// on while the other one's bytes move. The result of an element does not depend on windows.
//
// Weights without master weights are moved both ways, because they are a state of their own.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "parallel/zero/gradient_reducer.h"
#include "parallel/zero/optimizer_states.h"

namespace ltrain {

class HostUpdates {
 public:
  HostUpdates(const StoreContext& context, const ParameterLayout& layout, const OptimizerStates& states,
              const GradientReducer& gradients, OffloadAccess& access, const OffloadSettings& settings);

  bool on() const { return on_; }
  /// Takes host memory of the windows, and of `wide` tensors for widened states, beside the states.
  void lay_out(size_t wide);
  /// Tensors of one window in the type of the arithmetic, for kernels on the host.
  std::vector<Tensor> wide() const;

  /// Enqueues f(on, from, n, e) for all windows of `b`, on a thread of the host: elements [from, from + n) of
  /// the bucket, with all of `e` in host memory. f is copied, and must not refer to what the step changes.
  template <class F>
  void each(const Bucket& b, const F& f) {
    if (!on_) return;
    const int64_t begin = layout_.stored_begin(b), end = begin + layout_.stored_count(b);
    for (int64_t from = begin + states_.resident(b); from < end; from += elements_) {
      const int64_t n = std::min(elements_, end - from);
      const Elements e = bring(b, from, n);
      access_.states->run_on_host([f, from, n, e](Stream& on) { f(on, from, n, e); });
      note_updated();
    }
  }
  /// Makes the compute stream wait for all weights; after the last bucket.
  void finish();
  /// Blocks until no work on the host is left, done or failed.
  void wait() noexcept;

 private:
  struct Window {
    int64_t gradients = 0, weights = 0;  ///< offsets in host memory
  };
  struct Returning {
    Tensor weights;  ///< on the device
    int64_t offset = 0;
    Event updated;
  };
  Tensor in_host_memory(Tensor like, int64_t offset) const;
  Elements bring(const Bucket& b, int64_t from, int64_t n);
  void note_updated();
  void send_back();

  StoreContext c_;
  const ParameterLayout& layout_;
  const OptimizerStates& states_;
  const GradientReducer& gradients_;
  OffloadAccess& access_;
  bool on_;
  int64_t elements_;
  Window windows_[2];
  std::vector<std::pair<int64_t, TensorRecord*>> wide_;  ///< offsets in host memory, and records on meta
  size_t next_ = 0;
  bool begun_ = false;  ///< gradients of this update have left the device
  Returning current_;
  std::optional<Returning> waiting_;  ///< the window before, whose weights have not been sent back
};

}  // namespace ltrain
