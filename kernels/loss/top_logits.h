// Logits of a teacher of whom only the largest of each row are known, and the sum of the others'
// exponentials: rows for kernels/loss/distillation.h.
//
// The loss that follows has one bucket for all tokens outside the known ones K, a "ghost token"
// (arXiv:2503.16870): KL = sum over K of p log(p / q) + p_rest log(p_rest / q_rest), with p of the teacher
// and q of the student. The others get the student's own logits plus a constant of the row, with which their
// probabilities sum to p_rest: that gives the same loss, and with the teacher's row as a constant the same
// gradient.
#pragma once
#include <cmath>

#include "kernels/loss/cross_entropy.h"

namespace ltrain {

/// Statistics of the student's logits of a rank's columns outside K.
enum RestStat : int {
  kRestTop,  ///< largest logit, after the soft-cap if there is one; -infinity without such columns
  kRestSum,  ///< sum of exp((logit - largest) / temperature)
  kRestStats
};

/// teacher[r, ids[r, i] - part.first] = values[r, i] for ids of the rank's columns, and -infinity
/// elsewhere. stats: (R, kRestStats), dtype of the logits. teacher, student: (R, V) f32 or f64; ids: (R, k)
/// i32; values: (R, k), dtype of the logits; targets: (R) i32. Rows with a target < 0 are left as they are,
/// with statistics of 0.
void spread_top_logits(Stream& s, Tensor teacher, Tensor stats, Tensor student, Tensor ids, Tensor values,
                       Tensor targets, const VocabColumns& part, double temperature, double soft_cap = 0);

/// With the stats of all ranks, (ranks * R, kRestStats): columns with -infinity get the student's logit,
/// after the soft-cap, plus the row's constant. rest: (R), dtype of the logits, log of the sum of exp(logit /
/// temperature) of the teacher over all tokens outside K.
void fill_rest_logits(Stream& s, Tensor teacher, Tensor student, Tensor rest, Tensor targets, Tensor stats,
                      const VocabColumns& part, double temperature, double soft_cap = 0);

/// Constant of a row.
template <class T>
LT_HD inline T rest_shift(const T* stats, int ranks, int64_t rows, int64_t row, T rest, double temperature) {
  const auto stat = [&](int r, int which) {
    return static_cast<double>(stats[(r * rows + row) * kRestStats + which]);
  };
  double top = -INFINITY, sum = 0;
  for (int r = 0; r < ranks; ++r) top = std::fmax(top, stat(r, kRestTop));
  for (int r = 0; r < ranks; ++r)
    if (stat(r, kRestSum) > 0) sum += stat(r, kRestSum) * std::exp((stat(r, kRestTop) - top) / temperature);
  return sum > 0 ? static_cast<T>(temperature * (static_cast<double>(rest) - std::log(sum)) - top) : T(0);
}

LT_KERNEL(spread_top_logits, DType t, void* teacher, void* stats, const void* student, const int32_t* ids,
          const void* values, const int32_t* targets, int64_t rows, int64_t vocab, int64_t k,
          VocabColumns part, double temperature, double soft_cap)
LT_KERNEL(fill_rest_logits, DType t, void* teacher, const void* student, const void* rest,
          const int32_t* targets, const void* stats, int ranks, int64_t rows, int64_t vocab,
          VocabColumns part, double temperature, double soft_cap)

}  // namespace ltrain
