// RMSNorm and LayerNorm of rows with columns sharded over ranks. Each rank computes the moments of its
// columns. Gathered, they give every rank the mean and the scale (Chan, Golub, LeVeque 1979). Backward
// gathers two sums over the row in the same way. The caller communicates between the halves.
#pragma once
#include "kernels/norm/norm.h"

namespace ltrain {

/// Numbers for a row: rms {sum of squares}; layer {mean, sum of squared distances from it}.
constexpr int64_t norm_moment_count(NormKind kind) { return kind == NormKind::layer ? 2 : 1; }

/// moments: (T, count) f32 (f64 for f64), over this rank's columns; x: (T, C).
void norm_moments(Stream& s, Tensor moments, Tensor x, NormKind kind);

struct NormApply {
  NormKind kind = NormKind::rms;
  Tensor x;             ///< (T, C) this rank's columns
  Tensor moments;       ///< (ranks * T, count) from all ranks, each with C columns
  Tensor weight, bias;  ///< (C); bias: layer only
  Tensor y;             ///< (T, C) output
  Tensor mean, rstd;    ///< (T) output, over the full row; mean: layer only
  double eps = 1e-5;
  double weight_offset = 0;  ///< NormForward::weight_offset
};
void norm_apply(Stream& s, const NormApply& args);

struct NormCutBackward : NormBackward {  // over this rank's columns
  Tensor dots;           ///< (T, count) like moments: sum of dxhat * xhat, and for layer of dxhat
  int64_t all_cols = 0;  ///< columns of the full row
};
/// Writes dots over this rank's columns (the caller sums them over the ranks), dweight and dbias.
void norm_cut_dots(Stream& s, const NormCutBackward& args);
/// Second half: dx, with dots over the full row.
void norm_cut_backward(Stream& s, const NormCutBackward& args);

LT_KERNEL(norm_moments, DType t, NormShape shape, void* moments, const void* x)
LT_KERNEL(norm_apply, DType t, NormShape shape, int ranks, void* y, void* mean, void* rstd, const void* x,
          const void* moments, const void* weight, const void* bias)
LT_KERNEL(norm_cut_dots, DType t, NormShape shape, void* dots, void* dweight, void* dbias, const void* dy,
          const void* x, const void* weight, const void* mean, const void* rstd)
LT_KERNEL(norm_cut_backward, DType t, NormShape shape, int64_t all_cols, void* dx, const void* dy,
          const void* x, const void* weight, const void* mean, const void* rstd, const void* dots)

}  // namespace ltrain
