#include "kernels/moe/router_bias.h"
#include "kernels/moe/router_bias_step.h"

namespace ltrain::LT_ISA {

void move_router_bias_cpu(DType t, void* bias, const double* chosen, int64_t layers, int64_t experts,
                          int64_t stride, double rate, BiasTarget target) {
  const auto move = [&]<class A>(A* to) {
    for (int64_t l = 0; l < layers; ++l)
      for (int64_t i = 0; i < experts; ++i)
        to[l * experts + i] +=
            static_cast<A>(router_bias_step(chosen + l * stride, experts, i, rate, target));
  };
  t == DType::f64 ? move(static_cast<double*>(bias)) : move(static_cast<float*>(bias));
}

}  // namespace ltrain::LT_ISA
