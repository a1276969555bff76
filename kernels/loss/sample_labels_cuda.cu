#include "kernels/cuda/fast_math_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/loss/sample_labels.h"
#include "kernels/loss/soft_cap_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kLabelThreads = 512;
constexpr int kParts = kLabelThreads / kWarp;

/// One block for each row. Its columns are divided among the warps, which sum the exponentials of their
/// parts. The part with the goal is divided again, until it is no longer than a warp. A row is thus read
/// once, and a sixteenth of it again.
template <class T, bool kCap>
__global__ void __launch_bounds__(kLabelThreads)
    sample_labels(int32_t* labels, const T* logits, const int32_t* targets, const T* stats, int ranks,
                  int rank, int64_t vocab, T cap, VocabColumns of, RowRandomArgs random) {
  const int64_t row = blockIdx.x, rows = gridDim.x;
  const int32_t target = load_one(targets, row);
  double* goal_of_all = shared_memory<double>();
  T* masses = reinterpret_cast<T*>(goal_of_all + 1);
  if (threadIdx.x == 0)
    *goal_of_all = target < 0 ? -1 : label_goal(stats, rows, row, ranks, rank, label_uniform(random, row));
  __syncthreads();
  double goal = *goal_of_all;
  if (goal < 0) {
    if (threadIdx.x == 0) store_one(labels, row, target < 0 ? target : kLabelElsewhere);
    return;
  }
  const T* x = logits + row * vocab;
  const T top = load_one(stats, (rank * rows + row) * 3);
  const auto mass_at = [&](int64_t column) {
    return exp_below(capped<kCap>(load_one(x, column), cap) - top);
  };
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  int64_t begin = 0, count = of.columns;
  while (count > kWarp) {
    const int64_t each = (count + kParts - 1) / kParts, first = warp * each;
    const int64_t n = count - first < each ? count - first : each;
    T mass = 0;
#pragma unroll 4
    for (int64_t i = lane; i < n; i += kWarp) mass += mass_at(begin + first + i);
    mass = warp_reduce(mass, Sum());
    if (lane == 0) masses[warp] = mass;
    __syncthreads();
    int part = 0;
    double sum = 0, before = 0;
    for (int i = 0; i < kParts && !(sum > goal); ++i) {
      if (!(masses[i] > T(0))) continue;
      part = i;
      before = sum;
      sum += static_cast<double>(masses[i]);
    }
    __syncthreads();
    goal -= before;
    begin += part * each;
    count = count - part * each < each ? count - part * each : each;
  }
  if (threadIdx.x != 0) return;
  int64_t column = begin;
  double sum = 0;
  for (int64_t i = begin; i < begin + count && !(sum > goal); ++i) {
    const T mass = mass_at(i);
    sum += static_cast<double>(mass);
    if (mass > T(0)) column = i;
  }
  store_one(labels, row, static_cast<int32_t>(of.first + column));
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void sample_labels_cuda(Stream& s, DType t, int32_t* labels, const void* logits, const int32_t* targets,
                        const void* stats, int ranks, int rank, int64_t rows, int64_t vocab,
                        VocabColumns part, RowRandomArgs random, double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    with_cap(soft_cap, [&]<bool kCap>() {
      launch(s, dim3(static_cast<unsigned>(rows)), kLabelThreads, 8 + kParts * sizeof(T),
             cuda::sample_labels<T, kCap>, labels, static_cast<const T*>(logits), targets,
             static_cast<const T*>(stats), ranks, rank, vocab, static_cast<T>(soft_cap), part, random);
    });
  });
}

}  // namespace ltrain
