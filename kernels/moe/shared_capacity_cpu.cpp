#include "kernels/moe/shared_capacity.h"

#include <algorithm>

#include "kernels/moe/keep_first.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

template <class A>
void keep(const SharedCapacityPointers& p, const RouteArgs& a) {
  const A* weights = static_cast<const A*>(p.weights);
  int64_t* begin = scratch<int64_t>(0, a.experts + 1);
  int64_t* next = scratch<int64_t>(1, a.experts);
  int32_t* sorted = scratch<int32_t>(2, p.choices);  // sorted by expert, then token
  std::fill(begin, begin + a.experts + 1, 0);
  for (int64_t i = 0; i < p.choices; ++i) {
    // Choices of other ranks come from a collective; an invalid expert would index outside the table.
    LT_CHECK(p.experts[i] < a.experts, "expected a choice among {} experts, got expert {}", a.experts,
             p.experts[i]);
    if (p.experts[i] >= 0) ++begin[p.experts[i] + 1];
  }
  for (int64_t e = 0; e < a.experts; ++e) begin[e + 1] += begin[e];
  std::copy(begin, begin + a.experts, next);
  for (int64_t i = 0; i < p.choices; ++i)
    if (const int32_t e = p.experts[p.at(i, a.top_k)]; e >= 0) sorted[next[e]++] = static_cast<int32_t>(i);
  std::fill(p.kept, p.kept + p.mine, -1);
  for (int64_t e = 0; e < a.experts; ++e) {
    int32_t* chosen = sorted + begin[e];
    const int64_t count = begin[e + 1] - begin[e];
    keep_first(a, chosen, count, [&](int32_t i) { return weights[p.at(i, a.top_k)]; });
    p.counts[e] = 0;
    for (int64_t i = 0; i < std::min(count, a.capacity); ++i) {
      const int64_t at = p.at(chosen[i], a.top_k) - p.first;
      if (at < 0 || at >= p.mine) continue;
      p.kept[at] = 0;
      ++p.counts[e];
    }
  }
}

}  // namespace

void keep_of_all_cpu(DType type, SharedCapacityPointers p, RouteArgs a) {
  dispatch_wide(type, [&]<class A>() { keep<A>(p, a); });
}

}  // namespace ltrain::LT_ISA
