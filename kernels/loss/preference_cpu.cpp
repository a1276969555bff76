#include "kernels/loss/preference_row.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void row_log_probabilities_cpu(DType t, double* out, const void* stats, const int32_t* targets, int ranks,
                               int64_t rows) {
  dispatch_wide(t, [&]<class T>() {
    const T* of = static_cast<const T*>(stats);
    parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        out[row] = targets[row] < 0 ? 0 : log_probability_of_row(of, ranks, rows, row);
    });
  });
}

void sum_texts_cpu(double* sums, const double* values, const int32_t* texts, const int32_t* targets,
                   int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) sum_text_at(sums, values, texts, targets, row, rows);
}

void preference_pairs_cpu(double* totals, double* weights, const double* sums, const double* reference,
                          const int32_t* labels, int64_t pairs, PreferenceLoss loss, double chosen_weight,
                          bool adds) {
  double unused[PreferenceTotals::count] = {};
  double* to = adds ? totals : unused;
  for (int64_t pair = 0; pair < pairs; ++pair)
    if (labels)
      add_example(to, weights, sums, reference, labels[pair] != 0, pair, loss);
    else
      add_pair(to, weights, sums, reference, pair, loss, chosen_weight);
}

}  // namespace ltrain::LT_ISA
