#include "kernels/moe/keep_first_cuda.h"
#include "kernels/moe/shared_capacity.h"

namespace ltrain {
namespace cuda {
namespace {

/// One block for each expert; one thread for a run of the choices of all ranks, by token.
template <class A>
__global__ void keep_of_all(SharedCapacityPointers p, RouteArgs a) {
  int64_t* counts = shared_memory<int64_t>();
  const int64_t begin = p.choices * threadIdx.x / blockDim.x,
                end = p.choices * (threadIdx.x + 1) / blockDim.x;
  const int32_t e = static_cast<int32_t>(blockIdx.x);
  const A* weights = static_cast<const A*>(p.weights);
  const auto counted = [&](auto&& f) {
    int64_t c = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = p.at(i, a.top_k);
      c += p.experts[at] == e && f(rank_of(a, i, weights[at]));
    }
    return c;
  };
  int64_t all = 0, total = 0, kept = 0;
  const int64_t before = sum_before(counted([](uint64_t) { return true; }), counts, all);
  const bool by_rank = all > a.capacity && a.drop != Drop::last_token;
  KeptRanks k;
  if (by_rank) k = kept_ranks<A>(a.capacity, counted, counts);
  // Count of eligible choices so far; a choice is kept if few enough come before it.
  const int64_t most = by_rank ? k.equal_kept : a.capacity;
  int64_t so_far = before;
  if (by_rank) so_far = sum_before(counted([&](uint64_t r) { return r == k.least; }), counts, total);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t at = p.at(i, a.top_k), own = at - p.first;
    const bool here = own >= 0 && own < p.mine;
    if (p.experts[at] == -1 - e && here) p.kept[own] = -1;
    if (p.experts[at] != e) continue;
    const uint64_t r = rank_of(a, i, weights[at]);
    const bool keeps = by_rank && r != k.least ? r > k.least : so_far++ < most;
    if (!here) continue;
    p.kept[own] = keeps ? 0 : -1;
    kept += keeps;
  }
  sum_before(kept, counts, total);
  if (threadIdx.x == 0) p.counts[e] = static_cast<double>(total);
}

}  // namespace
}  // namespace cuda

void keep_of_all_cuda(Stream& s, DType type, SharedCapacityPointers p, RouteArgs a) {
  dispatch_wide(type, [&]<class A>() {
    cuda::launch(s, dim3(static_cast<unsigned>(a.experts)), cuda::kThreads, cuda::kThreads * 8,
                 cuda::keep_of_all<A>, p, a);
  });
}

}  // namespace ltrain
