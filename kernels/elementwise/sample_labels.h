// Labels that a model draws from its own logits, in the place of those of the data: what the Gauss-Newton-
// Bartlett estimate of a Hessian's diagonal takes the gradient of (arXiv:2305.14342, algorithm 2).
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/elementwise/cross_entropy.h"
#include "kernels/tensor/row_random.h"

namespace ltrain {

/// A label that another rank's columns have.
inline constexpr int32_t kLabelElsewhere = std::numeric_limits<int32_t>::max();

/// labels[r] = v with the probability softmax(logits[r])[v] of the whole vocabulary, where targets[r] >= 0;
/// targets[r] elsewhere. The draw is by inversion: the first token, in the order of the vocabulary, up to and
/// with which the probabilities exceed the row's number, so that it does not depend on who has which columns.
/// Each rank has the labels among its own columns, and kLabelElsewhere for others. labels, targets: (R) i32;
/// logits: (R, V) f32 or f64, with `part` and `soft_cap` as cross_entropy_stats has them; stats: (ranks * R,
/// 3), those of all ranks in the order of their columns, of which this one is number `rank`.
void sample_labels(Stream& s, Tensor labels, Tensor logits, Tensor targets, Tensor stats, int rank,
                   const VocabColumns& part, const RowRandom& random, double soft_cap = 0);

/// The row's number, in [0, 1).
LT_HD inline double label_uniform(const RowRandomArgs& random, int64_t row) {
  const Philox4 r = philox(random.seed, random.stream, random.call(row, 1));
  return to_uniform(r.v[0], r.v[1]);
}

/// How far among the exponentials of rank `rank`, below its largest logit, the number `u` of a row falls;
/// negative where it falls among those of another rank.
template <class T>
LT_HD inline double label_goal(const T* stats, int64_t rows, int64_t row, int ranks, int rank, double u) {
  const auto stat = [&](int r, int which) {
    return static_cast<double>(stats[(r * rows + row) * 3 + which]);
  };
  double top = -INFINITY, total = 0, before = 0;
  for (int r = 0; r < ranks; ++r) top = stat(r, 0) > top ? stat(r, 0) : top;
  const auto mass = [&](int r) { return stat(r, 1) * std::exp(stat(r, 0) - top); };
  int last = 0, at = 0;
  for (int r = 0; r < ranks; ++r) {
    if (mass(r) > 0) last = r;
    total += mass(r);
  }
  while (at < last && !(u * total < before + mass(at))) before += mass(at++);
  return at == rank ? (u * total - before) / std::exp(stat(at, 0) - top) : -1;
}

LT_KERNEL(sample_labels, DType t, int32_t* labels, const void* logits, const int32_t* targets,
          const void* stats, int ranks, int rank, int64_t rows, int64_t vocab, VocabColumns part,
          RowRandomArgs random, double soft_cap)

}  // namespace ltrain
