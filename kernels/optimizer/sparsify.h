// Sparse matrices: the choice of N of each M neighbours by magnitude (2:4 is the pattern of sparse tensor
// cores, arXiv:2104.08378), once, or for masks that move while dense master weights train.
//
// A matrix that is sparse for good has its zeros as mask. A mask that moves is in the weights of the step: a
// masked weight is -0, a kept one that is zero is +0.
#pragma once
#include <cmath>

#include "kernels/optimizer/sparse_pattern.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// x = 0 where w is not kept. Groups of w that have at most as many nonzero numbers as the pattern keeps are
/// unchanged, so that pruning is idempotent. x, w: (n) of any floating dtypes, n a multiple of p.unit(). x
/// may alias w.
void prune(Stream& s, Tensor x, Tensor w, const SparsePattern& p);

/// x = 0 where w is zero, of either sign. x, w: (n) of any floating dtypes.
void mask_by_zeros(Stream& s, Tensor x, Tensor w);

/// Chooses the mask of `low` by the magnitudes of w: low = w where w is kept, else -0. `revived` = 1 where a
/// weight was masked and is kept, else 0; may be undefined. p.kept = p.group keeps all. low, w, revived: (n)
/// as in masked_copy, n a multiple of p.unit().
void choose_mask(Stream& s, Tensor low, Tensor w, Tensor revived, const SparsePattern& p);

/// low = w where `low` is not masked. low: (n) of any floating dtype; w: (n) f32, or f64 as low.
void masked_copy(Stream& s, Tensor low, Tensor w);

/// grad += factor * w where `low` is masked. low, w, grad: (n) as in masked_copy, grad of any floating dtype.
void masked_decay(Stream& s, Tensor grad, Tensor low, Tensor w, double factor);

namespace sparse {

/// Magnitude of w; of NaN infinity, so that magnitudes have an order.
template <class A>
LT_HD inline A magnitude(A w) {
  return w != w ? static_cast<A>(INFINITY) : w < A(0) ? -w : w;
}

/// Bit mask of the p.kept largest magnitudes of a group; of equal ones those that come first.
template <class A>
LT_HD inline unsigned largest_of_group(const A* size, const SparsePattern& p) {
  unsigned keep = 0;
  for (int i = 0; i < p.group; ++i) {
    int before = 0;
    for (int j = 0; j < p.group; ++j) before += size[j] > size[i] || (size[j] == size[i] && j < i);
    keep |= static_cast<unsigned>(before < p.kept) << i;
  }
  return keep;
}

/// Columns of pair k of four columns, as bits.
LT_HD inline unsigned pair_bits(int k) { return 0xca9653u >> 4 * k & 15; }

/// Bit mask of the best of the 90 masks of a 4 x 4 block with two elements in each row and column: the
/// largest sum of magnitudes, of equal ones the first in the order of pairs of the first three rows.
template <class A>
LT_HD inline unsigned best_of_block(const A* size) {
  A sum[4][6];
  for (int r = 0; r < 4; ++r)
    for (int k = 0; k < 6; ++k) {
      A both = 0;
      for (int c = 0; c < 4; ++c)
        if (pair_bits(k) >> c & 1) both += size[4 * r + c];
      sum[r][k] = both;
    }
  A most = -1;
  unsigned keep = 0;
  for (int i = 0; i < 6; ++i)
    for (int j = 0; j < 6; ++j)
      for (int k = 0; k < 6; ++k) {
        const unsigned a = pair_bits(i), b = pair_bits(j), c = pair_bits(k);
        if ((a | b | c) != 15 || (a & b & c) != 0) continue;
        const unsigned last = a ^ b ^ c;  // the columns that have one element so far
        int l = 0;
        while (pair_bits(l) != last) ++l;
        const A total = (sum[0][i] + sum[1][j]) + (sum[2][k] + sum[3][l]);
        if (total > most) most = total, keep = a | b << 4 | c << 8 | last << 12;
      }
  return keep;
}

/// True if the group's nonzero numbers satisfy the pattern.
template <class A>
LT_HD inline bool satisfies(const A* size, const SparsePattern& p) {
  if (p.cols == 0) {
    int others = 0;
    for (int i = 0; i < p.group; ++i) others += size[i] != 0;
    return others <= p.kept;
  }
  for (int i = 0; i < 4; ++i) {
    int row = 0, column = 0;
    for (int j = 0; j < 4; ++j) row += size[4 * i + j] != 0, column += size[4 * j + i] != 0;
    if (row > 2 || column > 2) return false;
  }
  return true;
}

/// Bit mask of the elements of a group to keep, from their magnitudes.
template <class A>
LT_HD inline unsigned kept_of(const A* size, const SparsePattern& p) {
  return p.cols > 0 ? best_of_block(size) : largest_of_group(size, p);
}

/// True for a masked weight.
template <class A>
LT_HD inline bool is_masked(A low) {
  return low == A(0) && std::signbit(low);
}

/// low[i] = w, which is not masked: a negative number that rounds to zero becomes +0.
template <class L, class W>
LT_HD inline void put_kept(L* low, int64_t i, W w) {
  put(low, i, w + W(0));
  if (is_masked(get(low, i))) put(low, i, W(0));
}

/// Calls f.template operator()<L, W>() with the types of `low` and w.
template <class F>
void dispatch_masked(DType low, F&& f) {
  if (low == DType::f64) return f.template operator()<double, double>();
  if (low == DType::f32) return f.template operator()<float, float>();
  if (low == DType::bf16) return f.template operator()<bf16, float>();
  return f.template operator()<f16, float>();
}

}  // namespace sparse

LT_KERNEL(prune, DType tx, DType tw, void* x, const void* w, SparsePattern p, int64_t n)
LT_KERNEL(mask_by_zeros, DType tx, DType tw, void* x, const void* w, int64_t n)
LT_KERNEL(choose_mask, DType tl, DType tr, void* low, const void* w, void* revived, SparsePattern p,
          int64_t n)
LT_KERNEL(masked_copy, DType tl, void* low, const void* w, int64_t n)
LT_KERNEL(masked_decay, DType tg, DType tl, void* grad, const void* low, const void* w, double factor,
          int64_t n)

}  // namespace ltrain
