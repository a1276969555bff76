// Gradients of a norm's weight and bias: sums over rows, shared by norm_cuda.cu and norm_cut_cuda.cu.
#pragma once
#include "kernels/cuda/column_sums_cuda.h"
#include "kernels/norm/norm.h"

namespace ltrain::cuda {

/// Term of a row in the gradient of the weight.
template <class T>
struct WeightTerm {
  const T *dy, *x;
  const compute_t<T>*mean, *rstd;  // mean: null for rms
  int64_t cols;
  __device__ compute_t<T> operator()(int64_t row, int64_t col) const {
    const compute_t<T> m = mean ? mean[row] : compute_t<T>(0);
    return get(dy, row * cols + col) * (get(x, row * cols + col) - m) * rstd[row];
  }
};
template <class T>
struct BiasTerm {
  const T* dy;
  int64_t cols;
  __device__ compute_t<T> operator()(int64_t row, int64_t col) const { return get(dy, row * cols + col); }
};

/// `mean`: null for rms; `dbias`: may be null.
template <class T>
void norm_weight_gradients(Stream& s, compute_t<T>* dweight, compute_t<T>* dbias, const T* dy, const T* x,
                           const compute_t<T>* mean, const compute_t<T>* rstd, const NormShape& shape) {
  column_sums(s, dweight, WeightTerm<T>{dy, x, mean, rstd, shape.cols}, shape.rows, shape.cols,
              shape.accumulate);
  if (dbias) column_sums(s, dbias, BiasTerm<T>{dy, shape.cols}, shape.rows, shape.cols, shape.accumulate);
}

}  // namespace ltrain::cuda
