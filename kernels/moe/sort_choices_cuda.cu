#include "kernels/cuda/sum_before_cuda.h"
#include "kernels/moe/sort_choices.h"

namespace ltrain {
namespace cuda {
namespace {

/// One block for each expert: the slot of each choice becomes its index among the expert's choices.
__global__ void sort_choices_of(ChoicePointers p) {
  int64_t* counts = shared_memory<int64_t>();
  const int64_t begin = p.choices * threadIdx.x / blockDim.x,
                end = p.choices * (threadIdx.x + 1) / blockDim.x;
  const auto mine = [&](int64_t i) { return p.place(i) == static_cast<int64_t>(blockIdx.x); };
  int64_t count = 0, total = 0;
  for (int64_t i = begin; i < end; ++i) count += mine(i);
  int64_t place = sum_before(count, counts, total);
  for (int64_t i = begin; i < end; ++i)
    if (mine(i)) p.slots[i] = static_cast<int32_t>(place++);
  if (threadIdx.x == 0) p.counts[blockIdx.x] = total;
  if (threadIdx.x == 0 && blockIdx.x == 0) p.counts[p.n] = *p.last;
}

/// Turns indices within an expert into rows over all experts; other choices get none.
__global__ void place_choices(ChoicePointers p) {
  for (int64_t i = grid_thread(); i < p.choices; i += grid_stride()) {
    const int64_t expert = p.place(i);
    if (expert < 0) {
      p.slots[i] = -1;
      continue;
    }
    int64_t row = p.slots[i];
    for (int64_t e = 0; e < expert; ++e) row += p.counts[e];
    p.slots[i] = static_cast<int32_t>(row);
    p.sources[row] = static_cast<int32_t>(i);
  }
}

}  // namespace
}  // namespace cuda

void sort_choices_cuda(Stream& s, ChoicePointers p) {
  using namespace cuda;
  launch(s, dim3(static_cast<unsigned>(p.n)), kThreads, kThreads * 8, sort_choices_of, p);
  launch(s, blocks_for(p.choices, kThreads), kThreads, 0, place_choices, p);
}

}  // namespace ltrain
