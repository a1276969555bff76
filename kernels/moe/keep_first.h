// Selection of the choices that an expert's capacity keeps, on the CPU.
#pragma once
#include <algorithm>

#include "kernels/moe/route.h"

namespace ltrain {
namespace {

/// Moves the `a.capacity` choices with the highest priority to the front, in order. `choices` are in order.
/// weight(choice): its weight.
template <class F>
void keep_first(const RouteArgs& a, int32_t* choices, int64_t count, F&& weight) {
  if (a.drop == Drop::last_token || count <= a.capacity) return;
  const auto first = [&](int32_t x, int32_t y) {
    if (a.drop == Drop::later_choice) return x % a.top_k != y % a.top_k ? x % a.top_k < y % a.top_k : x < y;
    return weight(x) != weight(y) ? weight(x) > weight(y) : x < y;
  };
  std::nth_element(choices, choices + a.capacity, choices + count, first);
  std::sort(choices, choices + a.capacity);
}

}  // namespace
}  // namespace ltrain
