// Access to offloaded parameters and states outside the step: set-up, checkpoints, the EMA.
#pragma once
#include <algorithm>
#include <functional>

#include "kernels/storage/offload.h"

namespace ltrain {

/// Settings of offloading (kernels/storage/offload.h).
struct OffloadSettings {
  double fraction = 0;                ///< fraction of each bucket's elements with offloaded states
  int64_t window = int64_t{1} << 18;  ///< elements in transfer at once
  double params = 0;                  ///< ZeRO-3: fraction of buckets with offloaded weights, spread evenly
  /// States of experts that no token of a step chose are neither moved nor updated (untouched_experts.h).
  bool skip_untouched = false;
  bool host_update = false;  ///< the host's cores update offloaded states, in host memory of a GPU
};

struct OffloadAccess {
  OffloadMemory *states = nullptr, *params = nullptr;
  int64_t state_bytes = 0, param_bytes = 0;  ///< 0: none offloaded

  /// Lays out `bytes` of the memory of states; returns their offset.
  int64_t take_states(int64_t bytes) {
    const int64_t at = state_bytes;
    state_bytes += (bytes + kOffloadBlock - 1) / kOffloadBlock * kOffloadBlock;
    return at;
  }
  /// Waits for all transfers.
  void wait() const {
    if (state_bytes > 0) states->synchronize();
    if (param_bytes > 0) params->synchronize();
  }
  /// A view for kernels on `on` of a tensor that may be offloaded, valid until release().
  Tensor view(Stream& on, Tensor t) const {
    if (state_bytes > 0) t = states->view(on, t);
    if (param_bytes > 0) t = params->view(on, t);
    return t;
  }
  /// Called after kOffloadTouch bytes were touched.
  void release() const {
    if (state_bytes > 0) states->release();
    if (param_bytes > 0) params->release();
  }
  /// Calls f(from, n) for parts of `elements` elements that may be offloaded, and releases each.
  template <class F>
  void in_parts(int64_t elements, F f) const {
    const int64_t most = state_bytes + param_bytes > 0 ? kOffloadTouch / 8 : elements;
    for (int64_t at = 0; at < elements; at += most) {
      f(at, std::min(most, elements - at));
      release();
    }
  }
};

}  // namespace ltrain
