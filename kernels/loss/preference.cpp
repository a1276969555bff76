#include "kernels/loss/preference.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void row_log_probabilities(Stream& s, Tensor out, Tensor stats, Tensor targets) {
  const int64_t rows = targets.elements();
  LT_CHECK(out.elements() == rows && out.dtype == DType::f64 && stats.elements() % (3 * rows) == 0,
           "log-probabilities: expected {} f64 outputs and statistics (ranks * {}, 3), got {} {} and {}",
           rows, rows, out.elements(), dtype_name(out.dtype), to_string(stats.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("row_log_probabilities", OpClass::cross_entropy, 0, {out}, {stats, targets}));
    place(s, "row_log_probabilities", Rule::elementwise, {out}, {stats, targets});
    return;
  }
  LT_LAUNCH(s, row_log_probabilities, stats.dtype, out.ptr<double>(), stats.data, targets.ptr<int32_t>(),
            static_cast<int>(stats.elements() / 3 / rows), rows);
}

void sum_texts(Stream& s, Tensor sums, Tensor values, Tensor texts, Tensor targets) {
  const int64_t rows = values.elements();
  LT_CHECK(sums.dtype == DType::f64 && sums.cols() == 2 && values.dtype == DType::f64 &&
               texts.elements() == rows && targets.elements() == rows,
           "sums of texts: expected sums (T, 2) f64, {} texts and targets, got {} {}, {} and {}", rows,
           to_string(sums.shape), dtype_name(sums.dtype), texts.elements(), targets.elements());
  if (s.meta()) {
    s.meta()->add(s, op_cost("sum_texts", OpClass::elementwise, 0, {sums}, {values, texts, targets}));
    place(s, "sum_texts", Rule::elementwise, {sums}, {values, texts, targets});
    return;
  }
  LT_LAUNCH(s, sum_texts, sums.ptr<double>(), values.ptr<double>(), texts.ptr<int32_t>(),
            targets.ptr<int32_t>(), rows);
}

void preference_pairs(Stream& s, Tensor totals, Tensor weights, Tensor sums, Tensor reference, Tensor labels,
                      Tensor values, const PreferenceLoss& loss, double chosen_weight, bool adds) {
  const int64_t texts = weights.elements();
  LT_CHECK(texts % 2 == 0 && sums.elements() == 2 * texts && reference.elements() == texts &&
               totals.elements() == PreferenceTotals::count && totals.dtype == DType::f64,
           "preference: expected sums ({}, 2), {} reference sums and {} totals, got {}, {} and {}", texts,
           texts, int{PreferenceTotals::count}, to_string(sums.shape), reference.elements(),
           totals.elements());
  const bool labelled = loss.labelled();
  LT_CHECK(labelled == labels.defined() && (!labelled || labels.elements() == texts / 2),
           "preference: expected {} labels, got {}", labelled ? texts / 2 : 0,
           labels.defined() ? labels.elements() : 0);
  if (s.meta()) {
    const auto take = [&](TensorList read) {
      s.meta()->add(s, op_cost("preference_pairs", OpClass::elementwise, 0, {weights}, read));
      place(s, "preference_pairs", Rule::elementwise, {weights}, read);
    };
    labelled ? take({sums, reference, labels}) : take({sums, reference});
    place(s, "preference_pairs", Rule::sum_rows, {totals}, {values}, /*accumulate=*/true);
    return;
  }
  LT_LAUNCH(s, preference_pairs, totals.ptr<double>(), weights.ptr<double>(), sums.ptr<double>(),
            reference.ptr<double>(), labelled ? labels.ptr<int32_t>() : nullptr, texts / 2, loss,
            chosen_weight, adds);
}

}  // namespace ltrain
