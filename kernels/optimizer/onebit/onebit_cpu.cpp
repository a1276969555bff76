#include "kernels/optimizer/onebit/onebit.h"

#include <algorithm>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

template <class A, class L>
void adam(A* w, A* m, const A* v, const A* mean, L* low, int64_t n, const OnebitFactors<A>& f) {
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    A* __restrict wp = w;
    A* __restrict mp = m;
    const A* __restrict vp = v, * __restrict np = mean;
    L* __restrict lp = low;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      mp[i] = np[i];
      wp[i] = wp[i] * f.keep - f.step * np[i] / (std::sqrt(vp[i]) * f.root + f.eps);
    }
    if (!lp) return;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) put(lp, i, static_cast<float>(wp[i]));
  });
}

template <class A>
void lamb(const A* w, A* m, const A* v, A* fresh, A* mean, int64_t n, const OnebitFactors<A>& f,
          A weight_decay) {
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    const A* __restrict wp = w, * __restrict vp = v;
    A* __restrict mp = m, * __restrict fp = fresh, * __restrict np = mean;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const A now = np[i], grad = (now - f.beta1 * mp[i]) / f.one_minus1;
      fp[i] = f.beta2 * fp[i] + f.one_minus2 * grad * grad;
      mp[i] = now;
      np[i] = f.step * now / (std::sqrt(vp[i]) * f.root + f.eps) + weight_decay * wp[i];
    }
  });
}

template <class A>
double largest_ratio(const A* v, const A* fresh, int64_t n, const OnebitFactors<A>& f) {
  constexpr int64_t kBlock = 1 << 16;
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  double* partial = scratch<double>(2, blocks);
  parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      A most = 0;
      for (int64_t i = b * kBlock; i < std::min(n, (b + 1) * kBlock); ++i)
        most = std::max(most, f.ratio(v[i], fresh[i]));
      partial[b] = static_cast<double>(most);
    }
  });
  return *std::max_element(partial, partial + blocks);
}

}  // namespace

void onebit_adam_cpu(DType t, void* master, void* exp_avg, const void* exp_avg_sq, const void* mean,
                     DType low_type, void* low, int64_t n, bool decay, OnebitArgs args) {
  dispatch_half(low_type, [&]<class L>() {
    const auto run = [&]<class A>() {
      adam(static_cast<A*>(master), static_cast<A*>(exp_avg), static_cast<const A*>(exp_avg_sq),
           static_cast<const A*>(mean), static_cast<L*>(low), n, OnebitFactors<A>(args, decay));
    };
    dispatch_wide(t, run);
  });
}

void onebit_lamb_direction_cpu(DType t, const void* master, void* exp_avg, const void* exp_avg_sq,
                               void* fresh, void* mean, int64_t n, bool decay, OnebitArgs args) {
  OnebitArgs unit = args;
  unit.adam.lr = 1;  // `step` is then 1 / bias correction of the first moment
  const auto run = [&]<class A>() {
    lamb(static_cast<const A*>(master), static_cast<A*>(exp_avg), static_cast<const A*>(exp_avg_sq),
         static_cast<A*>(fresh), static_cast<A*>(mean), n, OnebitFactors<A>(unit, decay),
         decay ? A(args.adam.weight_decay) : A(0));
  };
  dispatch_wide(t, run);
}

void onebit_ratio_cpu(DType t, double* most, const void* exp_avg_sq, const void* fresh, int64_t n,
                      OnebitArgs args) {
  if (n == 0) return;
  const auto run = [&]<class A>() {
    *most = std::max(*most, largest_ratio(static_cast<const A*>(exp_avg_sq), static_cast<const A*>(fresh), n,
                                          OnebitFactors<A>(args, false)));
  };
  dispatch_wide(t, run);
}

void onebit_coefficients_cpu(double* state, double* sums, int64_t tensors, bool frozen, LambLimits limits) {
  for (int64_t t = 0; t < tensors; ++t) move_coefficient(state + 2 * t, sums + 2 * t, frozen, limits);
}

}  // namespace ltrain::LT_ISA
