#include "kernels/cuda/kernel_cuda.h"
#include "kernels/moe/balance.h"
#include "kernels/moe/balance_term.h"

namespace ltrain {
namespace cuda {
namespace {

/// One block.
__global__ void balance(double* table, double* total, const double* local, const double* all, int64_t runs,
                        BalanceArgs a) {
  double sum = 0;
  for (int64_t n = threadIdx.x; n < runs * a.experts; n += blockDim.x) {
    const int64_t g = n / a.experts, i = n % a.experts;
    const double term = balance_term(all + g * a.experts, all + (runs + g) * a.experts, i, a);
    table[n] = term * a.loss_scale;
    sum += term * local[(runs + g) * a.experts + i];
  }
  sum = block_reduce(sum, Sum(), 0.0, shared_memory<double>());
  if (threadIdx.x == 0) *total += sum;
}

}  // namespace
}  // namespace cuda

void balance_loss_cuda(Stream& s, double* table, double* total, const double* local, const double* all,
                       int64_t runs, BalanceArgs a) {
  cuda::launch(s, dim3(1), 256, cuda::kWarp * 8, cuda::balance, table, total, local, all, runs, a);
}

}  // namespace ltrain
