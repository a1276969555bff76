#include "kernels/loss/sample_labels.h"

#include <algorithm>

#include "kernels/loss/soft_cap_cpu.h"
#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/vector_math.h"

namespace ltrain::LT_ISA {
namespace {

/// Columns summed before each comparison with the goal.
constexpr int64_t kTile = 256;

/// First column at which the cumulative exponentials exceed `goal`; if rounding leaves none, the last column
/// with a nonzero one.
template <class T>
int64_t find_column(const T* x, int64_t columns, T top, T cap, double goal) {
  T e[kTile];
  const auto fill = [&](int64_t begin) {
    const int64_t n = std::min(kTile, columns - begin);
    T mass = 0;
    if (cap > 0) {
      for (int64_t i = 0; i < n; ++i) e[i] = fast_exp(soft_cap(x[begin + i], cap).value - top);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) e[i] = fast_exp(x[begin + i] - top);
    }
#pragma omp simd reduction(+ : mass)
    for (int64_t i = 0; i < n; ++i) mass += e[i];
    return static_cast<double>(mass);
  };
  int64_t tile = 0;
  double tile_begin = 0, sum = 0;
  for (int64_t begin = 0; begin < columns && !(sum > goal); begin += kTile) {
    const double mass = fill(begin);
    if (!(mass > 0)) continue;
    tile = begin;
    tile_begin = sum;
    sum += mass;
  }
  fill(tile);
  int64_t column = tile;
  sum = tile_begin;
  for (int64_t i = 0; tile + i < std::min(columns, tile + kTile) && !(sum > goal); ++i) {
    sum += static_cast<double>(e[i]);
    if (e[i] > 0) column = tile + i;
  }
  return column;
}

template <class T>
void sample(int32_t* labels, const T* logits, const int32_t* targets, const T* stats, int ranks, int rank,
            int64_t rows, int64_t vocab, VocabColumns part, RowRandomArgs random, double soft_cap) {
  parallel_for(rows, 1, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      labels[row] = targets[row];
      if (targets[row] < 0) continue;
      const double goal = label_goal(stats, rows, row, ranks, rank, label_uniform(random, row));
      labels[row] = kLabelElsewhere;
      if (goal < 0) continue;
      const T top = stats[(rank * rows + row) * 3];
      labels[row] = static_cast<int32_t>(
          part.first + find_column(logits + row * vocab, part.columns, top, T(soft_cap), goal));
    }
  });
}

}  // namespace

void sample_labels_cpu(DType t, int32_t* labels, const void* logits, const int32_t* targets,
                       const void* stats, int ranks, int rank, int64_t rows, int64_t vocab, VocabColumns part,
                       RowRandomArgs random, double soft_cap) {
  dispatch_wide(t, [&]<class T>() {
    sample(labels, static_cast<const T*>(logits), targets, static_cast<const T*>(stats), ranks, rank, rows,
           vocab, part, random, soft_cap);
  });
}

}  // namespace ltrain::LT_ISA
