// Losses of preference pairs in the head. The logits of a chunk are computed twice: once for the sums of the
// texts, from which the losses and the weights follow, and once for the gradient of the weighted
// cross-entropy.
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/loss/preference.h"
#include "kernels/matmul/matmul.h"
#include "kernels/meta/placement_rules.h"
#include "models/layers/head.h"

namespace ltrain {

void Head::sum_pairs(Step& step, MicroBatch& mb, Tensor whole, Tensor logits) const {
  LT_CHECK(
      step.groups.one_d() && !mb.drawn,
      "preference pairs: expected tensor parallelism in 1D and the data's labels, got {} ranks and drawn "
      "labels {}",
      step.groups.inner().size(), mb.drawn.has_value());
  Stream& s = step.compute;
  const int64_t rows = mb.rows(), chunk = logits.shape[0];
  const Tensor weight = step.params.value(weight_);
  Tensor values = step.memory.allocate(MemoryKind::temporaries, "log-probabilities", DType::f64, {rows});
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const Tensor out = logits.narrow(0, n), targets = mb.targets.narrow(first, n);
    MatmulArgs project;
    project.trans_b = true;
    product(step, out, whole.narrow(first, n), weight, project);
    Tensor stats = gathered_stats(step, out, targets);
    row_log_probabilities(s, values.narrow(first, n), stats, targets);
    step.memory.release(stats);
  }
  PairBatch& pairs = mb.pairs;
  fill_zero(s, pairs.sums);
  sum_texts(s, pairs.sums, values, pairs.texts, mb.targets);
  const Group& context = step.groups.context;
  if (context.size() > 1) {
    // A rank has the rows of a text that are its own.
    place_set(s, pairs.sums, Axis::context, Placement::P());
    context.all_reduce(s, pairs.sums);
  }
  if (step.training || pairs.totalled) {
    pairs.weights =
        step.memory.allocate(MemoryKind::temporaries, "weights of texts", DType::f64, pairs.references.shape);
    preference_pairs(s, pairs.totals, pairs.weights, pairs.sums, pairs.references, pairs.labels, values,
                     pairs.loss, pairs.chosen_weight, context.rank() == 0);
  }
  if (!step.training && pairs.weights.defined()) step.memory.release(pairs.weights);
  step.memory.release(values);
}

}  // namespace ltrain
