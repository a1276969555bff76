// Work of one row or one pair of the preference kernels, for host and device.
#pragma once
#include "kernels/loss/preference.h"

namespace ltrain {

template <class T>
LT_HD inline double log_probability_of_row(const T* stats, int ranks, int64_t rows, int64_t row) {
  double top = -INFINITY, sum = 0, at_target = 0;
  for (int r = 0; r < ranks; ++r) {
    const double t = static_cast<double>(stats[(r * rows + row) * 3]);
    top = t > top ? t : top;
  }
  for (int r = 0; r < ranks; ++r) {
    const T* of = stats + (r * rows + row) * 3;
    sum += static_cast<double>(of[1]) * std::exp(static_cast<double>(of[0]) - top);
    at_target += static_cast<double>(of[2]);
  }
  return at_target - (std::log(sum) + top);
}

/// Sums the text that begins at `row`; nothing if none begins there.
LT_HD inline void sum_text_at(double* sums, const double* values, const int32_t* texts,
                              const int32_t* targets, int64_t row, int64_t rows) {
  const int32_t text = texts[row];
  if (text < 0 || (row > 0 && texts[row - 1] == text)) return;
  double sum = 0, count = 0;
  for (int64_t r = row; r < rows && texts[r] == text; ++r) {
    if (targets[r] < 0) continue;
    sum += values[r];
    count += 1;
  }
  sums[2 * text] = sum;
  sums[2 * text + 1] = count;
}

/// Adds an example of kto to `totals` and writes the weights of its texts. The mismatched text has none.
LT_HD inline void add_example(double* totals, double* weights, const double* sums, const double* reference,
                              bool desirable, int64_t pair, const PreferenceLoss& loss) {
  const double* of = sums + 4 * pair;
  weights[2 * pair] = weights[2 * pair + 1] = 0;
  if (!(of[1] > 0 && of[3] > 0)) return;
  const ExampleLoss e = kto_loss(loss, {of[0], reference[2 * pair], of[1]}, desirable);
  weights[2 * pair] = -e.d_text;
  totals[PreferenceTotals::loss] += e.loss;
  totals[PreferenceTotals::divergence] += of[2] - reference[2 * pair + 1];
  // Indices are constant, so that a GPU holds the totals in registers.
  totals[PreferenceTotals::chosen_reward] += desirable ? e.reward : 0;
  totals[PreferenceTotals::rejected_reward] += desirable ? 0 : e.reward;
  totals[PreferenceTotals::chosen] += desirable ? of[0] : 0;
  totals[PreferenceTotals::rejected] += desirable ? 0 : of[0];
  totals[PreferenceTotals::desirable] += desirable ? 1 : 0;
}

/// Adds a pair to `totals` and writes the weights of its texts.
LT_HD inline void add_pair(double* totals, double* weights, const double* sums, const double* reference,
                           int64_t pair, const PreferenceLoss& loss, double chosen_weight) {
  const double* of = sums + 4 * pair;
  weights[2 * pair] = weights[2 * pair + 1] = 0;
  if (!(of[1] > 0 && of[3] > 0)) return;
  const TextSum w{of[0], reference[2 * pair], of[1]}, l{of[2], reference[2 * pair + 1], of[3]};
  const PairLoss p = preference_loss(loss, w, l);
  weights[2 * pair] = chosen_weight - p.d_chosen;
  weights[2 * pair + 1] = -p.d_rejected;
  totals[PreferenceTotals::loss] += p.loss;
  totals[PreferenceTotals::chosen_tokens_loss] -= w.policy;
  totals[PreferenceTotals::chosen_reward] += p.chosen_reward;
  totals[PreferenceTotals::rejected_reward] += p.rejected_reward;
  totals[PreferenceTotals::correct] += p.chosen_reward > p.rejected_reward ? 1 : 0;
  totals[PreferenceTotals::chosen] += w.policy;
  totals[PreferenceTotals::rejected] += l.policy;
}

}  // namespace ltrain
