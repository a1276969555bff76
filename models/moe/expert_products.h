// The linear layers of a layer's experts, in FP8 where they have a slot and a step multiplies in it.
#pragma once
#include "kernels/matmul/grouped_matmul.h"
#include "models/layers/step.h"

namespace ltrain {

/// A stack of matrices, one for each expert.
struct ExpertMatrices {
  Tensor stack;
  int slot = -1;        ///< of FP8; -1: none
  bool copied = false;  ///< of experts of other ranks
};

/// As grouped_matmul, grouped_matmul_dx and grouped_matmul_dw.
void experts_forward(Step& step, Tensor y, Tensor x, const ExpertMatrices& w, const GroupRows& rows);
void experts_dx(Step& step, Tensor dx, Tensor dy, const ExpertMatrices& w, const GroupRows& rows);
void experts_dw(Step& step, Tensor dw, int slot, Tensor dy, Tensor x, const GroupRows& rows, bool accumulate);

}  // namespace ltrain
