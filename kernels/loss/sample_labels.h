// Labels sampled from a model's own logits, used instead of the data's: the Gauss-Newton-Bartlett estimate of
// a Hessian's diagonal takes the gradient for them (arXiv:2305.14342, algorithm 2).
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/loss/cross_entropy.h"
#include "kernels/tensor/row_random.h"

namespace ltrain {

/// A label in another rank's columns.
inline constexpr int32_t kLabelElsewhere = std::numeric_limits<int32_t>::max();

/// For targets[r] >= 0: labels[r] = v with probability softmax(logits[r])[v] over the full vocabulary. For
/// others: labels[r] = targets[r]. Sampling is by inversion: the first token at which the cumulative
/// probability exceeds the row's number, so that the result does not depend on the sharding. Each rank has
/// the labels in its own columns, and kLabelElsewhere for others. labels, targets: (R) i32; logits: (R, V)
/// f32 or f64, with `part` and `soft_cap` as in cross_entropy_stats; stats: (ranks * R, 3), all ranks in the
/// order of their columns. `rank`: this rank's index among them.
void sample_labels(Stream& s, Tensor labels, Tensor logits, Tensor targets, Tensor stats, int rank,
                   const VocabColumns& part, const RowRandom& random, double soft_cap = 0);

/// Random number of the row, in [0, 1).
LT_HD inline double label_uniform(const RowRandomArgs& random, int64_t row) {
  const Philox4 r = philox(random.seed, random.stream, random.call(row, 1));
  return to_uniform(r.v[0], r.v[1]);
}

/// Position of the row's number `u` in the cumulative exponentials of rank `rank`, relative to its largest
/// logit; negative if it belongs to another rank.
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
