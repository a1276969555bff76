// What of a rank's parameters lies in offload memory, for whoever touches it beside the step: set-up,
// checkpoints, the average of weights.
#pragma once
#include <algorithm>
#include <functional>

#include "kernels/storage/offload.h"

namespace ltrain {

/// What lies in offload memory (kernels/storage/offload.h).
struct OffloadSettings {
  double fraction = 0;                ///< of the elements of each bucket: their states
  int64_t window = int64_t{1} << 18;  ///< elements that are on their way at once
  double params = 0;                  ///< ZeRO-3: of the buckets, evenly among them: their values
};

struct OffloadAccess {
  OffloadMemory *states = nullptr, *params = nullptr;
  int64_t state_bytes = 0, param_bytes = 0;  ///< 0: nothing lies there

  /// Waits until it is all there.
  void wait() const {
    if (state_bytes > 0) states->stream().synchronize();
    if (param_bytes > 0) params->stream().synchronize();
  }
  /// Where kernels on `on` may touch what may be of offload memory, until release().
  Tensor view(Stream& on, Tensor t) const {
    if (state_bytes > 0) t = states->view(on, t);
    if (param_bytes > 0) t = params->view(on, t);
    return t;
  }
  /// After kOffloadTouch bytes of it were touched.
  void release() const {
    if (state_bytes > 0) states->release();
    if (param_bytes > 0) params->release();
  }
  /// f(from, n) for parts of `elements` that may be of offload memory.
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
