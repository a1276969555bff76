// RMSNorm over parts of a row: each query or key head before its rotation, or all heads as one.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// `heads` parts of `width` columns, from column `first` on.
struct HeadNorm {
  int64_t first = 0, heads = 1, width = 1;
  double eps = 1e-5;
  double weight_offset = 0;  ///< added to every weight
  template <class F>
  void sizes(F&& f) const {  // names for messages
    f("heads", heads), f("width", width);
  }
};
/// In those columns: y = y * rstd * (weight + weight_offset), rstd = 1 / sqrt(mean(y^2) + eps). y: (T, C), in
/// place; x (T, heads * width), copy of the input, and rstd (T, heads), f32 (f64 for f64): saved for
/// backward, undefined without one. weight: (width).
void head_norm_forward(Stream& s, Tensor y, Tensor x, Tensor rstd, Tensor weight, const HeadNorm& part);
/// In those columns dy becomes the gradient of the input. dweight: (width) f32 (f64 for f64).
void head_norm_backward(Stream& s, Tensor dy, Tensor dweight, Tensor x, Tensor rstd, Tensor weight,
                        const HeadNorm& part, bool accumulate);

LT_KERNEL(head_norm_forward, DType t, void* y, void* x, void* rstd, const void* weight, int64_t rows,
          int64_t cols, HeadNorm part)
LT_KERNEL(head_norm_backward, DType t, void* dy, void* dweight, const void* x, const void* rstd,
          const void* weight, int64_t rows, int64_t cols, HeadNorm part, bool accumulate)

}  // namespace ltrain
