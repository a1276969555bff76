#include "kernels/ops/adamw.h"

#include <cmath>

#include "kernels/core/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

template <class A>
void update(A* __restrict w, A* __restrict m, A* __restrict v, const A* __restrict g, bf16* __restrict low,
            int64_t n, bool decay, const AdamwArgs& args) {
  const A beta1 = A(args.beta1), beta2 = A(args.beta2), eps = A(args.eps), scale = A(args.grad_scale);
  const A keep = decay ? A(1.0 - args.lr * args.weight_decay) : A(1);
  const A step = A(args.lr / (1.0 - std::pow(args.beta1, static_cast<double>(args.step))));
  const A root = A(1.0 / std::sqrt(1.0 - std::pow(args.beta2, static_cast<double>(args.step))));
  const A one_minus1 = A(1.0 - args.beta1), one_minus2 = A(1.0 - args.beta2);
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    // Pointers of its own: a captured one has lost __restrict, and with it the vector loop.
    A* __restrict wp = w, * __restrict mp = m, * __restrict vp = v;
    const A* __restrict gp = g;
    const auto body = [&](int64_t i) __attribute__((always_inline)) {
      const A grad = gp[i] * scale;
      const A mi = beta1 * mp[i] + one_minus1 * grad;
      const A vi = beta2 * vp[i] + one_minus2 * grad * grad;
      mp[i] = mi;
      vp[i] = vi;
      return wp[i] = wp[i] * keep - step * mi / (std::sqrt(vi) * root + eps);
    };
    if (low) {
      bf16* __restrict lp = low;
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) put(lp, i, static_cast<float>(body(i)));
    } else {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) body(i);
    }
  });
}

}  // namespace

void adamw_cpu(DType t, void* master, void* exp_avg, void* exp_avg_sq, const void* grad, void* low, int64_t n,
               bool decay, AdamwArgs args) {
  if (t == DType::f64) {
    update(static_cast<double*>(master), static_cast<double*>(exp_avg), static_cast<double*>(exp_avg_sq),
           static_cast<const double*>(grad), static_cast<bf16*>(low), n, decay, args);
  } else {
    update(static_cast<float*>(master), static_cast<float*>(exp_avg), static_cast<float*>(exp_avg_sq),
           static_cast<const float*>(grad), static_cast<bf16*>(low), n, decay, args);
  }
}

}  // namespace ltrain::LT_ISA
