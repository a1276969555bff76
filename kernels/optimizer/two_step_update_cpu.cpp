#include "kernels/optimizer/two_step_update.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

template <class A>
void direction(const A* w, A* m, A* v, A* g, int64_t n, bool decay, const OptimizerStep& args) {
  OptimizerStep unit = args;
  unit.lr = 1;  // f.step is then 1 / bias correction of the first moment
  const AdamwFactors<A> f(unit, decay);
  const A weight_decay = decay ? A(args.weight_decay) : A(0);
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    const A* __restrict wp = w;
    A* __restrict mp = m, * __restrict vp = v, * __restrict gp = g;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const A grad = gp[i] * f.scale;
      mp[i] = f.beta1 * mp[i] + f.one_minus1 * grad;
      vp[i] = f.beta2 * vp[i] + f.one_minus2 * grad * grad;
      gp[i] = f.step * mp[i] / (std::sqrt(vp[i]) * f.root + f.eps) + weight_decay * wp[i];
    }
  });
}

template <class A, class L>
void apply(A* w, const A* u, L* low, int64_t n, A keep, A factor) {
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    A* __restrict wp = w;
    const A* __restrict up = u;
    L* __restrict lp = low;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) wp[i] = wp[i] * keep - factor * up[i];
    if (!lp) return;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) put(lp, i, static_cast<float>(wp[i]));
  });
}

}  // namespace

void lamb_direction_cpu(DType t, const void* master, void* exp_avg, void* exp_avg_sq, void* grad, int64_t n,
                        bool decay, OptimizerStep args) {
  if (t == DType::f64) {
    direction(static_cast<const double*>(master), static_cast<double*>(exp_avg),
              static_cast<double*>(exp_avg_sq), static_cast<double*>(grad), n, decay, args);
  } else {
    direction(static_cast<const float*>(master), static_cast<float*>(exp_avg),
              static_cast<float*>(exp_avg_sq), static_cast<float*>(grad), n, decay, args);
  }
}

void apply_direction_cpu(DType t, void* master, const void* direction, DType low_type, void* low,
                         const double* sums, int64_t n, DirectionArgs args) {
  const double factor = args.factor(sums ? sums[0] : 0, sums ? sums[1] : 0);
  dispatch_half(low_type, [&]<class L>() {
    if (t == DType::f64) {
      apply(static_cast<double*>(master), static_cast<const double*>(direction), static_cast<L*>(low), n,
            args.keep, factor);
    } else {
      apply(static_cast<float*>(master), static_cast<const float*>(direction), static_cast<L*>(low), n,
            static_cast<float>(args.keep), static_cast<float>(factor));
    }
  });
}

}  // namespace ltrain::LT_ISA
