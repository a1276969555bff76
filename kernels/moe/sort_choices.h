// Choices of tokens sorted by expert: for part of a router's tokens, or for tokens of several ranks and some
// of the experts.
#pragma once
#include "kernels/moe/route.h"
#include "kernels/tensor/host_device.h"

namespace ltrain {

constexpr int kMostListed = 8;

/// Experts whose choices are sorted: [first, first + n) except the listed ones; with `only`, the listed ones
/// in the order of the list.
struct ChosenExperts {
  int64_t first = 0;
  int32_t listed[kMostListed] = {};
  int32_t count = 0;
  bool only = false;

  /// Index of the expert among `n`; -1: not included.
  LT_HD int64_t place(int64_t expert, int64_t n) const {
    int64_t at = -1;
    for (int32_t i = 0; i < count; ++i)
      if (listed[i] == expert) at = i;
    if (only) return at;
    return at < 0 && expert >= first && expert < first + n ? expert - first : -1;
  }
};

/// Fills slots (T, k), sources (T * k) and counts (n + 1) of `r` like the router (kernels/moe/route.h), for
/// the chosen experts only, from r.experts (T, k). Choices of other experts, and choices with negative `kept`
/// (T, k, i32), get slot -1. The last count is copied from `router_counts`, which is used for nothing else.
void sort_choices(Stream& s, const Routing& r, Tensor kept, Tensor router_counts, const ChosenExperts& which);

struct ChoicePointers {
  const int32_t *experts, *kept;
  const int64_t* last;  ///< last of the router's counts
  int32_t *slots, *sources;
  int64_t* counts;
  int64_t choices, n;
  ChosenExperts which;

  /// Index of the expert of choice i, or -1.
  LT_HD int64_t place(int64_t i) const { return kept[i] < 0 ? -1 : which.place(experts[i], n); }
};
LT_KERNEL(sort_choices, ChoicePointers p)

}  // namespace ltrain
