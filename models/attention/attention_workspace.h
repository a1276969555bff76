// Workspace of cuDNN's backward of attention (kernels/attention/attention_cudnn.h).
#pragma once
#include "kernels/attention/attention_cudnn.h"
#include "models/layers/step.h"

namespace ltrain {

/// Undefined if the step does not allow it, or if cuDNN would not take the call. Decided from the recipe
/// alone, so that every plan has it: without cuDNN it is allocated and unused.
inline CudnnWorkspace attention_workspace(Step& step, const AttentionShape& shape, const Dropout& drop,
                                          const Tensor& documents) {
  if (step.cudnn_backward == CudnnBackward::none ||
      !cudnn_declines(step.dtype, shape.head_dim, drop.on(), documents.defined(), shape.window, false,
                      shape.value_dim)
           .empty())
    return {};
  const bool deterministic = step.cudnn_backward == CudnnBackward::deterministic;
  return {step.memory.allocate(MemoryKind::temporaries, "workspace of cuDNN", DType::u8,
                               {cudnn_backward_workspace(shape, deterministic)}),
          deterministic};
}

}  // namespace ltrain
