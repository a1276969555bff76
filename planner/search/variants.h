// Layouts that a search derives from others: variants of fast ones, smaller forms of those that do not fit.
#pragma once
#include <cstdint>
#include <vector>

#include "planner/search/layout.h"

namespace ltrain {

enum class VariantKind : uint8_t {
  /// For a layout that fits: pipeline stages adjacent instead of data ranks; tensor in 2d, 2.5d and 3d; less
  /// recompute with the optimizer state in host memory; overlapped micro-batches if `auto` does not overlap
  /// them, or the reverse; FP8 if the limits allow it; and, if the recipe requests ZeRO-3, weights that stay
  /// gathered for a step (otherwise ZeRO-2 sends as much and needs less memory).
  refined,
  /// The least recompute that fits, chosen per tensor (recompute.granularity: auto).
  chosen_recompute,
  /// Overlapped pairs of forward and backward, if the schedule is designed for them.
  paired,
  /// For a layout that does not fit: memory for fewer expert token rows (model.moe.row_budget), 1.5 times an
  /// even share, then 1.25 times.
  row_budget,
  /// For a layout that does not fit on a card: its optimizer state in host memory.
  offload,
  /// More offload: activations, with ZeRO-3 the weights, or both.
  more_offload,
};

/// Variants of this kind that the rules allow. Settings that the recipe gives are never changed.
std::vector<Layout> variants_of(const Layout& layout, VariantKind kind, const Recipe& recipe,
                                const SearchLimits& limits);

}  // namespace ltrain
