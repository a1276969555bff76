// Two of each four neighbours (arXiv:2104.08378, the pattern of sparse tensor cores): their choice by
// magnitude, and the mask that the chosen weights are of themselves, as the others are zero.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// x = 0 where w is not one of the two of largest magnitude of its four neighbours (of equal ones those that
/// come first). Fours that have no more than two numbers other than zero are left alone, so that a second
/// time changes nothing. x, w: (n) of any floating type, 4 divides n; x may be w, and is the last then.
void prune_2_4(Stream& s, Tensor x, Tensor w);

/// x = 0 where w is zero, of either sign. x, w: (n) of any floating type.
void mask_by_zeros(Stream& s, Tensor x, Tensor w);

/// Which of the four at w stay, one bit each; w: float or double.
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
