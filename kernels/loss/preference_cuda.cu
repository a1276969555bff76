#include "kernels/cuda/pack_cuda.h"
#include "kernels/loss/preference_row.h"

namespace ltrain {
namespace cuda {
namespace {

template <class T>
__global__ void log_probabilities(double* out, const T* stats, const int32_t* targets, int ranks,
                                  int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  out[row] = targets[row] < 0 ? 0.0 : log_probability_of_row(stats, ranks, rows, row);
}

__global__ void sums_of_texts(double* sums, const double* values, const int32_t* texts,
                              const int32_t* targets, int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row < rows) sum_text_at(sums, values, texts, targets, row, rows);
}

/// One block. Each thread has consecutive pairs; the threads' totals are added by one tree.
template <bool labelled>
__global__ void __launch_bounds__(kThreads)
    losses_of_pairs(double* totals, double* weights, const double* sums, const double* reference,
                    const int32_t* labels, int64_t pairs, PreferenceLoss loss, double chosen_weight,
                    bool adds) {
  double own[PreferenceTotals::count] = {};
  const int64_t begin = pairs * threadIdx.x / blockDim.x, end = pairs * (threadIdx.x + 1) / blockDim.x;
  for (int64_t pair = begin; pair < end; ++pair)
    if constexpr (labelled)
      add_example(own, weights, sums, reference, labels[pair] != 0, pair, loss);
    else
      add_pair(own, weights, sums, reference, pair, loss, chosen_weight);
  for (int i = 0; i < PreferenceTotals::count; ++i) {
    const double all = block_reduce(own[i], Sum(), 0.0, shared_memory<double>());
    if (threadIdx.x == 0 && adds) totals[i] += all;
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void row_log_probabilities_cuda(Stream& s, DType t, double* out, const void* stats, const int32_t* targets,
                                int ranks, int64_t rows) {
  dispatch_wide(t, [&]<class T>() {
    launch(s, blocks_for(rows, kThreads), kThreads, 0, log_probabilities<T>, out,
           static_cast<const T*>(stats), targets, ranks, rows);
  });
}

void sum_texts_cuda(Stream& s, double* sums, const double* values, const int32_t* texts,
                    const int32_t* targets, int64_t rows) {
  launch(s, blocks_for(rows, kThreads), kThreads, 0, sums_of_texts, sums, values, texts, targets, rows);
}

void preference_pairs_cuda(Stream& s, double* totals, double* weights, const double* sums,
                           const double* reference, const int32_t* labels, int64_t pairs, PreferenceLoss loss,
                           double chosen_weight, bool adds) {
  launch(s, dim3(1), kThreads, kWarp * 8, labels ? losses_of_pairs<true> : losses_of_pairs<false>, totals,
         weights, sums, reference, labels, pairs, loss, chosen_weight, adds);
}

}  // namespace ltrain
