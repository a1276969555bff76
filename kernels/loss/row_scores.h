// Scores of the rows with a target: the output of a reward model at the last token of each text.
#pragma once
#include "kernels/loss/cross_entropy.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// values[r] = sum over columns of x[r, c] * weight[c], 0 where the target is negative. values: (R) f64; x:
/// (R, H); weight: (1, H), dtype of x; targets: (R) i32.
void row_scores(Stream& s, Tensor values, Tensor x, Tensor weight, Tensor targets);

/// Weights of texts, which are minus the gradients of the loss with respect to their scores, for the
/// gradients of rows.
struct ScoreGradient {
  Tensor targets;  ///< (R) i32
  Tensor texts;    ///< (R) i32
  Tensor weights;  ///< (T) f64
  GradientScale scale;
};

/// dx[r, c] = gradient of row r's score * weight[c], 0 where the target is negative. dx: (R, H).
void row_scores_backward(Stream& s, Tensor dx, Tensor weight, const ScoreGradient& gradient);
/// dweight[c] (+)= sum over rows of the gradient of row r's score * x[r, c]. dweight: (1, H), f32 (f64 for
/// f64).
void row_scores_weight(Stream& s, Tensor dweight, Tensor x, const ScoreGradient& gradient, bool accumulate);

LT_KERNEL(row_scores, DType t, double* values, const void* x, const void* weight, const int32_t* targets,
          int64_t rows, int64_t cols)
LT_KERNEL(row_scores_backward, DType t, void* dx, const void* weight, const int32_t* targets,
          GradientScale scale, int64_t rows, int64_t cols)
LT_KERNEL(row_scores_weight, DType t, void* dweight, const void* x, const int32_t* targets,
          GradientScale scale, int64_t rows, int64_t cols, bool accumulate)

}  // namespace ltrain
