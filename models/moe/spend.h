// Reuse of memory for several slices or flights.
#pragma once
#include "kernels/meta/placement_rules.h"

namespace ltrain {

/// On meta: marks `t` as consumed; the next contents may have another placement.
inline void spend(Stream& s, const Tensor& t) {
  if (!s.meta() || !t.defined()) return;
  place_spent(s, t);
  t.record->last_writer = {};
}

}  // namespace ltrain
