#include "models/head.h"

#include <algorithm>

#include "kernels/ops/matmul.h"
#include "models/tensor_parallel.h"

namespace ltrain {

const char* embedding_name(const ModelConfig& c) {
  return c.architecture == "gpt2" ? "transformer.wte.weight" : "model.embed_tokens.weight";
}

ParameterSpec vocabulary_weight(const Groups& groups, const ModelConfig& c, const char* name) {
  return cut_over_tensor({name, {c.vocab_size, c.hidden_size}, Init::normal, c.initializer_range, true}, 0,
                         groups.tensor.rank(), groups.tensor.size());
}

void Head::declare(ParameterStore& store, const Groups& groups, const ModelConfig& c, bool sequence_parallel,
                   bool decay_embeddings, int embedding) {
  const bool gpt2 = c.architecture == "gpt2";
  norm_.declare(store, gpt2 ? "transformer.ln_f" : "model.norm", gpt2 ? NormKind::layer : NormKind::rms,
                c.hidden_size, c.norm_eps, sequence_parallel);
  shares_embedding_ = c.tie_word_embeddings && embedding >= 0;
  weight_ = embedding;
  if (!shares_embedding_) {
    ParameterSpec w =
        vocabulary_weight(groups, c, c.tie_word_embeddings ? embedding_name(c) : "lm_head.weight");
    if (c.tie_word_embeddings) {
      w.tied_stages = true;
      w.decay = decay_embeddings;
    }
    weight_ = store.add({w});
  }
  const ParameterSpec& spec = store.spec(weight_);
  vocab_ = spec.shape[0];
  part_ = {spec.slice.offset[0], spec.slice.extent[0]};
}

int64_t Head::chunk_rows(int64_t rows, int64_t vocab) {
  // About 64 MiB of fp32 logits: large enough that the weight gradient's own traffic is small beside the
  // product.
  const int64_t fit = std::max<int64_t>(64, (int64_t{16} << 20) / vocab / 64 * 64);
  const int64_t chunks = (rows + fit - 1) / fit;
  return (rows + chunks - 1) / chunks;
}

void Head::chunk_loss(Step& step, const MicroBatch& mb, Tensor logits, Tensor targets, Tensor grad) const {
  const Group& g = step.groups.tensor;
  if (!g.many()) {
    cross_entropy(step.compute, mb.loss, grad, logits, targets, mb.grad_scale);
    return;
  }
  Tensor own =
      step.memory.allocate(MemoryKind::temporaries, "logit statistics", logits.dtype, {logits.shape[0], 3});
  Tensor all = step.memory.allocate(MemoryKind::temporaries, "logit statistics of all", logits.dtype,
                                    {logits.shape[0] * g.size(), 3});
  cross_entropy_stats(step.compute, own, logits, targets, part_);
  g.stream->wait(step.compute.record());
  g.comm->all_gather(*g.stream, all, own);
  step.compute.wait(g.stream->record());
  cross_entropy_sharded(step.compute, mb.loss, grad, logits, targets, all, part_, mb.grad_scale);
  step.memory.release(own);
  step.memory.release(all);
}

Tensor Head::loss(Step& step, const MicroBatch& mb, Residual& r) const {
  step.enter("head");
  NormLayer::Saved saved;
  norm_.forward(step, r, saved);
  const int64_t rows = mb.rows(), chunk = chunk_rows(rows, vocab_), hidden = saved.y.cols();
  const DType logit_type = step.stat_type();
  const Tensor weight = step.params.value(weight_);
  Tensor whole = gather_rows(step, saved.y, "gathered rows");
  Tensor logits =
      step.memory.allocate(MemoryKind::temporaries, "logits of a chunk", logit_type, {chunk, vocab_});
  Tensor dlogits, dy, partial;
  GradTarget to;
  if (step.training) {
    dlogits = logits;
    if (step.dtype != logit_type) dlogits = step.temporary("d logits of a chunk", {chunk, vocab_});
    dy = step.temporary("d norm", saved.y.shape);
    partial = partial_rows(step, dy, rows, "partial gradient");
    to = step.params.contribute(weight_);
  }
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const Tensor x = whole.narrow(first, n), out = logits.narrow(0, n);
    MatmulArgs project;
    project.trans_b = true;
    matmul(step.compute, out, x, weight, project);
    const Tensor grad = step.training ? dlogits.narrow(0, n) : Tensor();
    chunk_loss(step, mb, out, mb.targets.narrow(first, n), grad);
    if (!step.training) continue;
    matmul(step.compute, partial.narrow(first, n), grad, weight);
    MatmulArgs outer;
    outer.trans_a = true;
    outer.accumulate = to.accumulate || first > 0;
    matmul(step.compute, to.tensor, grad, x, outer);
  }
  if (step.training && step.dtype != logit_type) step.release(dlogits);
  step.release(logits);
  release_whole(step, whole, saved.y);
  if (!step.training) {
    step.release(saved.y);
    step.release(r.x);
    return {};
  }
  if (!shares_embedding_) step.params.grad_ready(weight_);
  sum_rows_start(step, dy, partial).wait(step);
  Tensor dx = step.temporary("d residual", {dy.shape[0], hidden});
  norm_.backward(step, dx, dy, saved, /*first=*/true);
  step.release(dy);
  step.release(saved.y);
  r.x = Tensor();
  return dx;
}

void Head::logits(Step& step, Residual& r, Tensor out, int64_t first_row) const {
  LT_CHECK(!step.groups.tensor.many(), "logits of a vocabulary that is cut");
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
