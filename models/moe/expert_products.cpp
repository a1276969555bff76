#include "models/moe/expert_products.h"

#include "models/layers/fp8.h"

namespace ltrain {

void experts_forward(Step& step, Tensor y, Tensor x, const ExpertMatrices& w, const GroupRows& rows) {
  if (!step.fp8 || w.slot < 0) return grouped_matmul(step.compute, y, x, w.stack, rows);
  step.fp8->multiply_groups(step, w.slot, y, {x, false, Fp8Role::input},
                            {w.stack, false, Fp8Role::weight, w.copied}, rows);
}

void experts_dx(Step& step, Tensor dx, Tensor dy, const ExpertMatrices& w, const GroupRows& rows) {
  if (!step.fp8 || w.slot < 0) return grouped_matmul_dx(step.compute, dx, dy, w.stack, rows);
  step.fp8->multiply_groups(step, w.slot, dx, {dy, false, Fp8Role::gradient},
                            {w.stack, true, Fp8Role::weight, w.copied}, rows);
}

void experts_dw(Step& step, Tensor dw, int slot, Tensor dy, Tensor x, const GroupRows& rows,
                bool accumulate) {
  if (!step.fp8 || slot < 0) return grouped_matmul_dw(step.compute, dw, dy, x, rows, accumulate);
  step.fp8->multiply_groups(step, slot, dw, {dy, true, Fp8Role::gradient}, {x, true, Fp8Role::input}, rows,
                            accumulate);
}

}  // namespace ltrain
