// Choices of experts by token ids: hash routing (arXiv:2106.04426), and routers that are frozen when a table
// of token ids has learned their choices (StableMoE, arXiv:2204.08396).
#include <algorithm>

#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/elementwise/embedding.h"
#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "models/moe/router.h"

namespace ltrain {
namespace {

/// i32 elements for ops that copy floating ones bit by bit.
Tensor as_f32(Tensor t) {
  LT_CHECK(t.dtype == DType::i32, "expected i32, got {}", dtype_name(t.dtype));
  t.dtype = DType::f32;
  return t;
}

}  // namespace

void Router::declare_by_token(ParameterStore& store, const ModelConfig& c, const std::string& name) {
  by_token_ = true;
  vocab_ = c.vocab_size;
  if (c.moe.freeze_step == 0) return;
  ParameterSpec scores{.name = name + ".token_scores.weight",
                       .shape = {vocab_, args_.experts},
                       .init = Init::normal,
                       .std = c.initializer_range,
                       .decay = false};
  scores.router = true;
  if (rows_cut_) scores.sum = Axis::tensor;
  scores_ = store.add({scores});
}

Tensor Router::tokens(Step& step, const MicroBatch& mb, int64_t rows) const {
  if (rows == mb.rows()) return mb.tokens;
  Tensor mine = place_apart(step.compute, mb.tokens.flat(first_row(step, mb, rows), {rows}),
                            "tokens of the rank's rows");
  place_set(step.compute, mine, Axis::tensor, Placement::S(0));
  return mine;
}

void Router::look_up(Step& step, const MicroBatch& mb, Tensor experts) const {
  LT_CHECK(mb.by_token.table.defined(), "expected experts of token ids in {}, got none", place_);
  const int64_t k = args_.top_k;
  const Tensor table = mb.by_token.table.flat(layer_ * vocab_ * k, {vocab_, k});
  embedding_forward(step.compute, as_f32(experts), tokens(step, mb, experts.shape[0]), as_f32(table), {}, {},
                    {.first = 0, .rows = vocab_, .total = vocab_});
}

// Takes no more memory than the router of a micro-batch takes afterwards.
void Router::freeze(Step& step, const MicroBatch& mb) const {
  RouteArgs a;
  a.experts = args_.experts;
  a.top_k = args_.top_k;
  const Tensor scores = step.params.value(scores_);
  const int64_t rows = mb.rows() / (rows_cut_ ? step.groups.tensor.size() : 1);
  for (int64_t begin = 0, n = 0; begin < vocab_; begin += n) {
    n = std::min(rows, vocab_ - begin);
    Saved saved;
    Routing& r = saved.routing;
    const auto make = [&](const char* name, DType type, Shape shape) {
      return step.memory.allocate(step.training ? MemoryKind::activations : MemoryKind::temporaries, name,
                                  type, shape);
    };
    r.logits = make("scores of token ids", step.stat_type(), {n, a.experts});
    cast(step.compute, r.logits, scores.narrow(begin, n));
    r.run = n;
    r.norm = make("norms of token ids", step.stat_type(), {n, 2});
    r.experts = mb.by_token.table.flat((layer_ * vocab_ + begin) * a.top_k, {n, a.top_k});
    r.weights = make("weights of token ids", step.stat_type(), {n, a.top_k});
    r.slots = make("rows of token ids", DType::i32, {n, a.top_k});
    r.sources = make("token ids of rows", DType::i32, {n * a.top_k});
    r.counts = make("token ids of experts", DType::i64, {a.experts + 1});
    r.statistics = make("statistics of token ids", DType::f64, {3, a.experts});
    route_forward(step.compute, r, {}, a);
    r.experts = {};  // not the router's to release
    release(step, saved);
  }
}

Tensor Router::token_scores(Step& step, const MicroBatch& mb, int64_t rows) const {
  Tensor scores = step.temporary("scores of tokens", {rows, args_.experts});
  embedding_forward(step.compute, scores, tokens(step, mb, rows), step.params.value(scores_), {}, {},
                    {.first = 0, .rows = vocab_, .total = vocab_});
  if (scores.dtype == step.stat_type()) return scores;
  Tensor wide =
      step.memory.allocate(MemoryKind::temporaries, "scores of tokens, wide", step.stat_type(), scores.shape);
  cast(step.compute, wide, scores);
  step.release(scores);
  return wide;
}

void Router::cross_entropies(Step& step, const Routing& r, Tensor scores, Tensor loss, Tensor dscores,
                             double scale) const {
  const int64_t rows = scores.shape[0], k = args_.top_k;
  const auto make = [&](const char* name, DType type, Shape shape) {
    return step.memory.allocate(MemoryKind::temporaries, name, type, shape);
  };
  Tensor target = make("taught experts", DType::i32, {rows, 1}), one;
  if (dscores.defined() && k > 1) one = make("d scores of one choice", scores.dtype, scores.shape);
  for (int64_t j = 0; j < k; ++j) {
    copy_rectangles(step.compute, as_f32(target), as_f32(r.experts),
                    {{.rows = rows, .cols = 1, .from_col = j}});
    const Tensor d = j == 0 ? dscores : one;
    cross_entropy(step.compute, loss, d, scores, target, scale);
    if (j > 0 && d.defined()) add_to(step.compute, dscores, d);
  }
  step.release(one);
  step.release(target);
}

void Router::distil(Step& step, const MicroBatch& mb, const Routing& r) const {
  const int64_t rows = r.logits.shape[0];
  Tensor scores = token_scores(step, mb, rows);
  Tensor loss = step.memory.allocate(MemoryKind::temporaries, "distillation of the router", DType::f64, {1});
  fill_zero(step.compute, loss);
  cross_entropies(step, r, scores, loss, {}, 1);
  const int64_t last = mb.experts.cols() - 1;
  scale_add(step.compute, sums(mb, last, 1), 1, loss, of_choice(step, mb, rows));
  step.release(loss);
  step.release(scores);
}

void Router::distil_backward(Step& step, const MicroBatch& mb, const Routing& r) const {
  const int64_t rows = r.logits.shape[0];
  Tensor scores = token_scores(step, mb, rows);
  const auto make = [&](const char* name, DType type, Shape shape) {
    return step.memory.allocate(MemoryKind::temporaries, name, type, shape);
  };
  Tensor loss = make("distillation of the router", DType::f64, {1});
  fill_zero(step.compute, loss);
  Tensor d = make("d scores of tokens", scores.dtype, scores.shape);
  cross_entropies(step, r, scores, loss, d, mb.loss_scale * of_choice(step, mb, rows));
  const GradBuffer to = step.params.accumulate(scores_);
  embedding_backward(step.compute, to.tensor, d, tokens(step, mb, rows),
                     {.first = 0, .rows = vocab_, .total = vocab_}, to.accumulate);
  step.params.grad_ready(scores_);
  step.release(d);
  step.release(loss);
  step.release(scores);
}

}  // namespace ltrain
