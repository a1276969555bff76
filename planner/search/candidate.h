// A layout on its way through a search.
#pragma once
#include <cstddef>
#include <cstdint>

#include "planner/search/layout.h"
#include "planner/search/rank_trials.h"
#include "planner/search/search_parts.h"

namespace ltrain {

/// The pipeline price that a bound has.
enum class Price : uint8_t { none, least_actions, actions };

struct LayoutCandidate {
  Layout layout;
  Bound bound;
  size_t index = 0;  ///< position in the space, then in the order of variants; unique
  Price price = Price::none;
  Trial trial;
  /// Sequences per second.
  double bound_speed() const { return static_cast<double>(layout.global_batch) / bound.step_seconds; }
  double tried_speed() const { return static_cast<double>(layout.global_batch) / trial.step_seconds; }
};

inline bool faster_by_bound(const LayoutCandidate& a, const LayoutCandidate& b) {
  return a.bound_speed() != b.bound_speed() ? a.bound_speed() > b.bound_speed() : a.index < b.index;
}
/// Equally fast ones by memory.
inline bool faster_by_trial(const LayoutCandidate& a, const LayoutCandidate& b) {
  if (a.tried_speed() != b.tried_speed()) return a.tried_speed() > b.tried_speed();
  return a.trial.bytes != b.trial.bytes ? a.trial.bytes < b.trial.bytes : a.index < b.index;
}

inline int64_t micro_batches(const Layout& l) { return l.global_batch / (l.micro_batch * l.data); }

}  // namespace ltrain
