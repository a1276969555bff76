// Head of a reward model: a score of the last token of each text, from which the losses of pairs follow. Rows
// stay on the rank that has them, with sequence parallelism too: only scores are summed over ranks.
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/loss/preference.h"
#include "kernels/loss/row_scores.h"
#include "kernels/meta/placement_rules.h"
#include "models/layers/head.h"

namespace ltrain {

ParameterSpec score_weight(const ModelConfig& config, bool sequence_parallel) {
  ParameterSpec w{.name = config.score_name(),
                  .shape = {1, config.hidden_size},
                  .init = Init::normal,
                  .std = config.initializer_range,
                  .decay = true};
  w.embedding = true;
  if (sequence_parallel) w.sum = Axis::tensor;  // each rank has scores of its own rows
  return w;
}

void Head::score_loss(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const {
  LT_CHECK(step.groups.one_d() && mb.pairs.on(),
           "scores of texts: expected tensor parallelism in 1D and pairs, got {} ranks and pairs {}",
           step.groups.inner().size(), mb.pairs.on());
  Stream& s = step.compute;
  const int64_t rows = y.rows(), first = step.row_map(mb).first_row;
  const auto own_rows = [&](const Tensor& whole, const char* name) {
    if (!step.cuts_rows()) return whole;
    const Tensor own = place_apart(s, whole.narrow(first, rows), name);
    place_set(s, own, Axis::tensor, Placement::S(0));
    return own;
  };
  PairBatch pairs = mb.pairs;
  const Tensor targets = own_rows(mb.targets, "targets"), texts = own_rows(pairs.texts, "texts"),
               weight = step.params.value(weight_);
  Tensor values = step.memory.allocate(MemoryKind::temporaries, "scores", DType::f64, {rows});
  row_scores(s, values, y, weight, targets);
  fill_zero(s, pairs.sums);
  sum_texts(s, pairs.sums, values, texts, targets);
  // The last token of a text is on one rank.
  bool adds = true;
  const auto add_over = [&](const Group& group, Axis axis) {
    place_set(s, pairs.sums, axis, Placement::P());
    group.all_reduce(s, pairs.sums);
    adds = adds && group.rank() == 0;
  };
  if (step.groups.context.size() > 1) add_over(step.groups.context, Axis::context);
  if (step.cuts_rows()) add_over(step.groups.tensor, Axis::tensor);
  if (step.training || pairs.totalled) {
    pairs.weights =
        step.memory.allocate(MemoryKind::temporaries, "weights of texts", DType::f64, pairs.references.shape);
    preference_pairs(s, pairs.totals, pairs.weights, pairs.sums, pairs.references, pairs.labels, values,
                     pairs.loss, pairs.chosen_weight, adds);
  }
  if (step.training) {
    const ScoreGradient gradient{
        .targets = targets, .texts = texts, .weights = pairs.weights, .scale = mb.gradient_scale()};
    row_scores_backward(s, dy, weight, gradient);
    if (step.params.trains(weight_)) {
      const GradBuffer to = step.params.accumulate(weight_);
      row_scores_weight(s, to.tensor, y, gradient, to.accumulate);
    }
  }
  if (pairs.weights.defined()) step.memory.release(pairs.weights);
  step.memory.release(values);
}

}  // namespace ltrain
