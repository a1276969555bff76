#include "kernels/loss/sample_labels.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void sample_labels(Stream& s, Tensor labels, Tensor logits, Tensor targets, Tensor stats, int rank,
                   const VocabColumns& part, const RowRandom& random, double soft_cap) {
  const int64_t rows = logits.rows();
  LT_CHECK(labels.elements() == rows && targets.elements() == rows && stats.elements() % (3 * rows) == 0 &&
               stats.dtype == logits.dtype && part.columns <= logits.cols(),
           "sample_labels: expected {} labels and targets, at most {} columns and statistics (ranks * {}, 3) "
           "{}, got {} labels, {} targets, {} columns and statistics {} {}",
           rows, logits.cols(), rows, dtype_name(logits.dtype), labels.elements(), targets.elements(),
           part.columns, to_string(stats.shape), dtype_name(stats.dtype));
  if (s.meta()) {
    // Half of a row is read on average.
    OpCost cost =
        op_cost("sample_labels", OpClass::cross_entropy, 2.0 * logits.elements(), {labels}, {targets, stats});
    cost.bytes += 0.5 * static_cast<double>(logits.bytes());
    s.meta()->add(s, cost);
    place(s, "sample_labels", Rule::elementwise, {labels}, {targets, stats});
    return;
  }
  LT_LAUNCH(s, sample_labels, logits.dtype, labels.ptr<int32_t>(), logits.data, targets.ptr<int32_t>(),
            stats.data, static_cast<int>(stats.elements() / 3 / rows), rank, rows, logits.cols(), part,
            random.args(), soft_cap);
}

}  // namespace ltrain
