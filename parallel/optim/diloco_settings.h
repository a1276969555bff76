// Settings of DiLoCo (arXiv:2311.08105): sites that train apart and average their changes now and then. With
// fragments, a delay or a merge it is Streaming DiLoCo (arXiv:2501.18512).
#pragma once
#include <cstdint>

#include "base/enum_names.h"

namespace ltrain {

/// Type of the sums of differences over sites.
enum class SiteSum : uint8_t { fp32, int8 };
LT_ENUM_NAMES(SiteSum, {SiteSum::fp32, "fp32"}, {SiteSum::int8, "int8"});

struct DilocoSettings {
  int64_t sites = 0;  ///< 0: off
  int64_t inner_steps = 100;
  double outer_lr = 0.7, outer_momentum = 0.9;
  bool nesterov = true;
  int64_t fragments = 1;  ///< groups of layers, each with a synchronization of its own in inner_steps steps
  int64_t delay = 0;      ///< steps from a fragment's difference of weights to its outer update
  double merge = 0;       ///< share of a site's own weights that an outer update leaves
  SiteSum sum = SiteSum::fp32;  ///< fp32: in the type of the weights

  bool on() const { return sites > 0; }
  /// True if sites also agree after step `step`, counted from 1: on requests to stop and biases of routers.
  bool agrees_after(int64_t step) const { return on() && step % inner_steps == 0; }
  /// True if sites have weights of their own at every step.
  bool streams() const { return on() && (fragments > 1 || delay > 0 || merge > 0); }
  /// Fragment whose outer update follows step `step`; -1: none.
  int updates_after(int64_t step) const {
    return on() && step > 0 && step % interval() == 0 ? static_cast<int>((step / interval() - 1) % fragments)
                                                      : -1;
  }
  /// Fragment whose difference is taken after step `step`; -1: none.
  int sends_after(int64_t step) const { return updates_after(step + delay); }
  /// Fragment whose difference is on its way after step `step`; -1: none. The delay is below interval().
  int in_flight_after(int64_t step) const {
    const int64_t due = on() ? (step / interval() + 1) * interval() : 0;
    return on() && due - step <= delay && step > 0 ? updates_after(due) : -1;
  }
  /// Steps from the outer update of a fragment to that of the next one.
  int64_t interval() const { return inner_steps / fragments; }
};

}  // namespace ltrain
