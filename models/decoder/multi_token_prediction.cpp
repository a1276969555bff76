#include "models/decoder/multi_token_prediction.h"

#include "kernels/elementwise/copy_rectangles.h"

namespace ltrain {
namespace {

/// Columns of `joined` from `at` on, as many as `half` has.
CopyRectangle half_of(const Tensor& half, int64_t at) { return {half.shape[0], half.shape[1], 0, 0, 0, at}; }

}  // namespace

void PredictionModule::declare(ParameterStore& store, const Groups& groups, const ModelConfig& c,
                               bool sequence_parallel, bool expert_tensor, const DispatchOptions& dispatch,
                               int64_t layer) {
  LT_CHECK(groups.one_d(),
           "multi-token prediction: expected tensor parallelism in 1D, got {} ranks in another mode",
           groups.inner().size());
  place_ = c.place(layer);
  const ParameterNames& n = c.names();
  const std::string prefix = n.layer(layer) + ".";
  const auto norm = [&](NormLayer& of, const std::string& name) {
    of.declare(store, groups, prefix + name, c.traits(), c.hidden_size, c.norm_eps, sequence_parallel);
  };
  norm(embedding_norm_, n.mtp_embedding_norm);
  norm(hidden_norm_, n.mtp_hidden_norm);
  projection_.declare(store, groups, sequence_parallel, {{prefix + n.mtp_projection, c.hidden_size}},
                      2 * c.hidden_size, false, c.initializer_range, LinearSharding::whole);
  block_.declare(store, groups, c, sequence_parallel, expert_tensor, dispatch, layer);
  norm(output_norm_, n.mtp_output_norm);
}

Tensor PredictionModule::forward(Step& step, const MicroBatch& mb, Tensor embedded, Tensor before,
                                 Tensor rope_table, Saved& saved) const {
  step.enter(place_);
  const Shape shape = embedded.shape;
  saved.joined = step.activation("embedding and hidden state", {shape[0], 2 * shape[1]});
  const auto normed = [&](const NormLayer& norm, Tensor x, NormLayer::Saved& of, int64_t at) {
    Residual r;
    r.x = x;
    r.kept = true;
    norm.forward(step, r, of);
    copy_rectangles(step.compute, saved.joined, of.y, {half_of(of.y, at)});
    step.release(of.y);
  };
  normed(embedding_norm_, embedded, saved.embedding, 0);
  normed(hidden_norm_, before, saved.hidden, shape[1]);
  Residual r;
  r.x = step.activation("projection", shape);
  projection_.forward(step, r.x, saved.joined);
  block_.forward(step, mb, r, rope_table, saved.block);
  step.enter(place_);
  output_norm_.forward(step, r, saved.output);
  return saved.output.y;
}

Tensor PredictionModule::backward(Step& step, const MicroBatch& mb, Tensor dy, Tensor dbefore,
                                  Tensor rope_table, Saved& saved) const {
  step.enter(place_);
  Tensor dx = step.temporary("d residual", dy.shape);
  output_norm_.backward(step, dx, dy, saved.output, /*first=*/true);
  step.release(dy);
  block_.backward(step, mb, dx, rope_table, saved.block);
  step.enter(place_);
  Tensor djoined = step.temporary("d embedding and hidden state", saved.joined.shape);
  {
    const RunningBatch running(step, mb);
    projection_.backward(step, djoined, dx, saved.joined);
  }
  step.release(saved.joined);
  Tensor half = step.temporary("d norm", dx.shape);
  copy_rectangles(step.compute, half, djoined, {half_of(half, half.shape[1]).reversed()});
  hidden_norm_.backward(step, dbefore, half, saved.hidden);
  copy_rectangles(step.compute, half, djoined, {half_of(half, 0).reversed()});
  embedding_norm_.backward(step, dx, half, saved.embedding, /*first=*/true);
  step.release(half);
  step.release(djoined);
  return dx;
}

}  // namespace ltrain
