#include "models/head.h"

#include <algorithm>

#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/matmul.h"

namespace ltrain {

void Head::declare(ParameterStore& store, const ModelConfig& c, int embedding) {
  const bool gpt2 = c.architecture == "gpt2";
  norm_.declare(store, gpt2 ? "transformer.ln_f" : "model.norm", gpt2 ? NormKind::layer : NormKind::rms,
                c.hidden_size, c.norm_eps);
  vocab_ = c.vocab_size;
  tied_ = c.tie_word_embeddings;
  weight_ =
      tied_
          ? embedding
          : store.add(
                {{"lm_head.weight", {c.vocab_size, c.hidden_size}, Init::normal, c.initializer_range, true}});
}

int64_t Head::chunk_rows(int64_t rows, int64_t vocab) {
  // About 64 MiB of fp32 logits: large enough that the weight gradient's own traffic is small beside the
  // product.
  const int64_t fit = std::max<int64_t>(64, (int64_t{16} << 20) / vocab / 64 * 64);
  const int64_t chunks = (rows + fit - 1) / fit;
  return (rows + chunks - 1) / chunks;
}

Tensor Head::loss(Step& step, const MicroBatch& mb, Residual& r) const {
  step.enter("head");
  NormLayer::Saved saved;
  norm_.forward(step, r, saved);
  const int64_t rows = mb.rows(), chunk = chunk_rows(rows, vocab_), hidden = saved.y.cols();
  const DType logit_type = step.stat_type();
  const Tensor weight = step.params.value(weight_);
  Tensor logits =
      step.memory.allocate(MemoryKind::temporaries, "logits of a chunk", logit_type, {chunk, vocab_});
  Tensor dlogits, dy;
  if (step.training) {
    dlogits = logits;
    if (step.dtype != logit_type) dlogits = step.temporary("d logits of a chunk", {chunk, vocab_});
    dy = step.temporary("d norm", saved.y.shape);
  }
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const Tensor x = saved.y.narrow(first, n), out = logits.narrow(0, n);
    MatmulArgs project;
    project.trans_b = true;
    matmul(step.compute, out, x, weight, project);
    const Tensor grad = step.training ? dlogits.narrow(0, n) : Tensor();
    cross_entropy(step.compute, mb.loss, grad, out, mb.targets.narrow(first, n), mb.grad_scale);
    if (!step.training) continue;
    matmul(step.compute, dy.narrow(first, n), grad, weight);
    MatmulArgs outer;
    outer.trans_a = true;
    outer.accumulate = step.params.accumulating() || first > 0;
    matmul(step.compute, step.params.grad(weight_), grad, x, outer);
  }
  if (step.training && step.dtype != logit_type) step.release(dlogits);
  step.release(logits);
  if (!step.training) {
    step.release(saved.y);
    step.release(r.x);
    return {};
  }
  if (!tied_) step.params.grad_ready(weight_);
  Tensor dx = step.temporary("d residual", {rows, hidden});
  norm_.backward(step, dx, dy, saved, /*first=*/true);
  step.release(dy);
  step.release(saved.y);
  r.x = Tensor();
  return dx;
}

void Head::logits(Step& step, Residual& r, Tensor out, int64_t first_row) const {
  step.enter("head");
  NormLayer::Saved saved;
  norm_.forward(step, r, saved);
  const int64_t n = out.shape[0];
  MatmulArgs project;
  project.trans_b = true;
  matmul(step.compute, out, saved.y.narrow(first_row, n), step.params.value(weight_), project);
  step.release(saved.y);
  step.release(r.x);
}

}  // namespace ltrain
