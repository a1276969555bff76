// Selection of the choices that an expert's capacity keeps: one block for each expert, each thread has a run
// of the choices.
#pragma once
#include <bit>

#include "kernels/cuda/sum_before_cuda.h"
#include "kernels/moe/route.h"

namespace ltrain::cuda {

/// Weights as integers of the same order; weights are not negative.
__device__ inline uint64_t bits_of(float w) { return std::bit_cast<uint32_t>(w); }
__device__ inline uint64_t bits_of(double w) { return std::bit_cast<uint64_t>(w); }

/// Priority of a choice; the highest is kept first, and among equal ones the first.
template <class A>
__device__ uint64_t rank_of(const RouteArgs& a, int64_t choice, A weight) {
  return a.drop == Drop::later_choice ? static_cast<uint64_t>(a.top_k - 1 - choice % a.top_k)
                                      : bits_of(weight);
}

/// Choices that an expert keeps if there are more than its capacity.
struct KeptRanks {
  uint64_t least = 0;      ///< higher ranks are kept, and
  int64_t equal_kept = 0;  ///< the first choices of equal rank, up to this number
};

/// counted(f): number of the thread's choices with a rank r that satisfies f(r).
template <class A, class F>
__device__ KeptRanks kept_ranks(int64_t capacity, F&& counted, int64_t* counts) {
  KeptRanks k;
  int64_t total = 0;
  for (int bit = static_cast<int>(sizeof(A)) * 8 - 1; bit >= 0; --bit) {
    const uint64_t at = k.least | uint64_t{1} << bit;
    sum_before(counted([&](uint64_t r) { return r >= at; }), counts, total);
    if (total >= capacity) k.least = at;
  }
  sum_before(counted([&](uint64_t r) { return r > k.least; }), counts, total);
  k.equal_kept = capacity - total;
  return k;
}

}  // namespace ltrain::cuda
