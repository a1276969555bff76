// Memory that serves several slices or flights.
#pragma once
#include "kernels/meta/placement_rules.h"

namespace ltrain {

/// On meta: what `t` holds is done with, and what comes next may lie in another way.
inline void spend(Stream& s, const Tensor& t) {
  if (!s.meta() || !t.defined()) return;
  place_spent(s, t);
  t.record->last_writer = {};
}

}  // namespace ltrain
