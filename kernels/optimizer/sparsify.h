// 2:4 sparsity (arXiv:2104.08378, the pattern of sparse tensor cores): the choice of two of each four
// neighbours by magnitude. The zeros of the weights are the mask.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// x = 0 where w is not one of the two largest magnitudes of its four neighbours (ties keep the first ones).
/// Groups of four with at most two nonzero numbers are unchanged, so that pruning is idempotent. x, w: (n) of
/// any floating dtypes, n a multiple of 4. x may alias w.
void prune_2_4(Stream& s, Tensor x, Tensor w);

/// x = 0 where w is zero, of either sign. x, w: (n) of any floating dtypes.
void mask_by_zeros(Stream& s, Tensor x, Tensor w);

/// Bit mask of the elements of the group of four at w to keep; w: float or double.
template <class A>
LT_HD inline unsigned largest_two_of_4(const A* w) {
  int others = 0, first = 0, second = -1;
  A size[4];
  for (int i = 0; i < 4; ++i) {
    size[i] = w[i] < A(0) ? -w[i] : w[i];
    others += w[i] != A(0);
  }
  if (others <= 2) return 15;
  for (int i = 1; i < 4; ++i)
    if (size[i] > size[first]) first = i;
  for (int i = 0; i < 4; ++i)
    if (i != first && (second < 0 || size[i] > size[second])) second = i;
  return 1u << first | 1u << second;
}

LT_KERNEL(prune_2_4, DType tx, DType tw, void* x, const void* w, int64_t n)
LT_KERNEL(mask_by_zeros, DType tx, DType tw, void* x, const void* w, int64_t n)

}  // namespace ltrain
