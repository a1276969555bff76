#include "kernels/cuda/kernel_cuda.h"
#include "kernels/optimizer/onebit/onebit.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int64_t kRatioBlocks = 512;  // partial results of onebit_ratio

template <class A, class L>
__global__ void onebit_adam_kernel(A* w, A* m, const A* v, const A* mean, L* low, int64_t n,
                                   OnebitFactors<A> f) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) {
    const A now = mean[i], to = w[i] * f.keep - f.step * now / f.denominator(v[i]);
    m[i] = now;
    w[i] = to;
    if (low) put(low, i, static_cast<float>(to));
  }
}

template <class A>
__global__ void onebit_lamb_kernel(const A* w, A* m, const A* v, A* fresh, A* mean, int64_t n,
                                   OnebitFactors<A> f, A weight_decay) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) {
    const A now = mean[i], grad = (now - f.beta1 * m[i]) / f.one_minus1;
    fresh[i] = f.beta2 * fresh[i] + f.one_minus2 * grad * grad;
    m[i] = now;
    mean[i] = f.step * now / f.denominator(v[i]) + weight_decay * w[i];
  }
}

template <class A>
__global__ void onebit_ratio_kernel(double* partial, const A* v, const A* fresh, int64_t n,
                                    OnebitFactors<A> f) {
  A most = 0;
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) {
    const A r = f.ratio(v[i], fresh[i]);
    most = r > most ? r : most;
  }
  const double all = block_reduce(static_cast<double>(most), Max(), 0.0, shared_memory<double>());
  if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

__global__ void largest_kernel(double* most, const double* partial, int count) {
  double all = *most;
  for (int i = 0; i < count; ++i) all = partial[i] > all ? partial[i] : all;
  *most = all;
}

__global__ void onebit_coefficients_kernel(double* state, double* sums, int64_t tensors, bool frozen,
                                           LambLimits limits) {
  for (int64_t t = grid_thread(); t < tensors; t += grid_stride())
    move_coefficient(state + 2 * t, sums + 2 * t, frozen, limits);
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void onebit_adam_cuda(Stream& s, DType t, void* master, void* exp_avg, const void* exp_avg_sq,
                      const void* mean, DType low_type, void* low, int64_t n, bool decay, OnebitArgs args) {
  dispatch_half(low_type, [&]<class L>() {
    dispatch_wide(t, [&]<class A>() {
      launch(s, blocks_for(n, kThreads), kThreads, 0, onebit_adam_kernel<A, L>, static_cast<A*>(master),
             static_cast<A*>(exp_avg), static_cast<const A*>(exp_avg_sq), static_cast<const A*>(mean),
             static_cast<L*>(low), n, OnebitFactors<A>(args, decay));
    });
  });
}

void onebit_lamb_direction_cuda(Stream& s, DType t, const void* master, void* exp_avg, const void* exp_avg_sq,
                                void* fresh, void* mean, int64_t n, bool decay, OnebitArgs args) {
  OnebitArgs unit = args;
  unit.adam.lr = 1;
  dispatch_wide(t, [&]<class A>() {
    launch(s, blocks_for(n, kThreads), kThreads, 0, onebit_lamb_kernel<A>, static_cast<const A*>(master),
           static_cast<A*>(exp_avg), static_cast<const A*>(exp_avg_sq), static_cast<A*>(fresh),
           static_cast<A*>(mean), n, OnebitFactors<A>(unit, decay), decay ? A(args.adam.weight_decay) : A(0));
  });
}

void onebit_ratio_cuda(Stream& s, DType t, double* most, const void* exp_avg_sq, const void* fresh, int64_t n,
                       OnebitArgs args) {
  if (n == 0) return;
  double* partial = static_cast<double*>(scratch(s, kRatioBlocks * 8));
  const dim3 blocks = blocks_for(n, kThreads, kRatioBlocks);
  dispatch_wide(t, [&]<class A>() {
    launch(s, blocks, kThreads, kWarp * 8, onebit_ratio_kernel<A>, partial, static_cast<const A*>(exp_avg_sq),
           static_cast<const A*>(fresh), n, OnebitFactors<A>(args, false));
  });
  launch(s, dim3(1), 1, 0, largest_kernel, most, static_cast<const double*>(partial),
         static_cast<int>(blocks.x));
}

void onebit_coefficients_cuda(Stream& s, double* state, double* sums, int64_t tensors, bool frozen,
                              LambLimits limits) {
  launch(s, blocks_for(tensors, kThreads), kThreads, 0, onebit_coefficients_kernel, state, sums, tensors,
         frozen, limits);
}

}  // namespace ltrain
