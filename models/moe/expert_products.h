// Linear layers of a layer's experts, in FP8 if they have a slot and the step uses it.
#pragma once
#include "kernels/matmul/grouped/grouped_matmul.h"
#include "models/layers/step.h"

namespace ltrain {

/// A stack of matrices, one for each expert.
struct ExpertMatrices {
  Tensor stack;
  int slot = -1;        ///< FP8 slot; -1: none
  bool copied = false;  ///< weights of other ranks' experts
};

/// grouped_matmul, grouped_matmul_dx and grouped_matmul_dw for experts.
void experts_forward(Step& step, Tensor y, Tensor x, const ExpertMatrices& w, const GroupRows& rows);
void experts_dx(Step& step, Tensor dx, Tensor dy, const ExpertMatrices& w, const GroupRows& rows);
void experts_dw(Step& step, Tensor dw, int slot, Tensor dy, Tensor x, const GroupRows& rows, bool accumulate);

}  // namespace ltrain
