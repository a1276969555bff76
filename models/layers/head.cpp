#include "models/layers/head.h"

#include <algorithm>

#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/loss/distillation.h"
#include "kernels/loss/sample_labels.h"
#include "kernels/loss/top_logits.h"
#include "kernels/matmul/matmul.h"
#include "kernels/meta/placement_rules.h"
#include "models/layers/tensor_parallel.h"

namespace ltrain {

namespace {

/// Columns of rank `rank` of `ranks` that share the vocabulary.
VocabColumns share(int64_t vocab, int rank, int ranks) {
  const int64_t each = (vocab + ranks - 1) / ranks, first = std::min(vocab, rank * each);
  return {first, std::min(each, vocab - first)};
}

}  // namespace

ParameterSpec vocabulary_weight(const Groups& g, const ModelConfig& c, const std::string& name) {
  ParameterSpec w{.name = name,
                  .shape = {c.vocab_size, c.hidden_size},
                  .init = Init::normal,
                  .std = c.initializer_range,
                  .decay = true};
  w.embedding = true;
  const auto cut = [&](Axis a, int dim) {
    w = cut_over(a, std::move(w), dim, g.over(a).rank(), g.over(a).size());
  };
  if (g.one_d()) {
    cut(Axis::tensor, 0);
    return w;
  }
  cut(Axis::row, 0);
  if (g.mesh.tensor_mode == TensorMode::three_d) {
    cut(Axis::depth, 0);
  } else {
    w.sum = Axis::depth;
  }
  cut(Axis::column, 1);
  return w;
}

VocabPart vocabulary_part(const Groups& g, const ModelConfig& c) {
  const Axis axis = g.one_d() ? Axis::tensor : Axis::row;
  const VocabColumns part = share(c.vocab_size, g.over(axis).rank(), g.over(axis).size());
  return {part.first, part.columns, c.vocab_size, axis};
}

void Head::declare(ParameterStore& store, const Groups& groups, const ModelConfig& c, bool sequence_parallel,
                   bool decay_embeddings, int embedding) {
  const ParameterNames& names = c.names();
  norm_.declare(store, groups, names.final_norm, c.traits(), c.hidden_size, c.norm_eps, sequence_parallel);
  if (scores_texts_ = c.scores_texts; scores_texts_) {
    weight_ = store.add({score_weight(c, sequence_parallel)});
    return;
  }
  soft_cap_ = c.final_logit_softcapping.value_or(0);
  shares_embedding_ = c.tie_word_embeddings && embedding >= 0;
  weight_ = embedding;
  if (!shares_embedding_) {
    ParameterSpec w =
        vocabulary_weight(groups, c, (c.tie_word_embeddings ? names.tokens : names.output) + ".weight");
    if (c.tie_word_embeddings) {
      w.tied_stages = true;
      w.decay = decay_embeddings;
    }
    weight_ = store.add({w});
  }
  vocab_ = store.spec(weight_).shape[0];
  whole_vocab_ = c.vocab_size;
  if (groups.mesh.tensor_mode == TensorMode::three_d) vocab_ *= groups.depth.size();  // gathered
  part_ = share(c.vocab_size, groups.inner().rank(), groups.inner().size());
}

int64_t Head::chunk_rows(const LogitsChunk& chunk, int64_t rows, int64_t vocab, int64_t multiple) {
  // Each chunk reads and writes the weight's gradient once, 8 V H bytes in fp32, in addition to 6 R V H
  // FLOPs. A CPU, with some 20 FLOPs in the time of a byte, hides that behind 64 MiB of logits; a GPU, with
  // some 300, needs thousands of rows (schema: train.logits_chunk_size).
  const int64_t most =
      chunk.rows > 0 ? chunk.rows : std::max(chunk.least, (int64_t{16} << 20) / vocab / 64 * 64);
  const int64_t fit = std::max(multiple, most / multiple * multiple), chunks = (rows + fit - 1) / fit,
                units = (rows + multiple - 1) / multiple;
  return std::min(rows, (units + chunks - 1) / chunks * multiple);
}

void Head::chunk_loss(Step& step, const MicroBatch& mb, Tensor logits, Tensor targets, int64_t first_row,
                      Tensor grad) const {
  const Group& g = step.groups.inner();
  // Drawn labels are for squares of the token losses' gradients alone.
  const OutputZLoss z_loss = step.training && !mb.drawn ? mb.z_loss : OutputZLoss{};
  GradientScale scale = mb.gradient_scale();
  if (mb.pairs.weights.defined() && !step.compute.meta()) {
    scale.weights = mb.pairs.weights.ptr<double>();
    scale.texts = mb.pairs.texts.ptr<int32_t>() + first_row;
  }
  if (g.size() == 1 && !mb.drawn) {
    cross_entropy(step.compute, mb.loss, grad, logits, targets, scale, soft_cap_, z_loss);
    return;
  }
  Tensor all = gathered_stats(step, logits, targets);
  Tensor labels = targets;
  if (mb.drawn) {
    labels = step.memory.allocate(MemoryKind::temporaries, "drawn labels", DType::i32, targets.shape);
    RowRandom random = *mb.drawn;
    random.rows = step.whole_rows(mb);
    random.rows.first_row = first_row;
    sample_labels(step.compute, labels, logits, targets, all, g.rank(), part_, random, soft_cap_);
  }
  cross_entropy_sharded(step.compute, mb.loss, grad, logits, labels, all, part_, scale, soft_cap_, z_loss);
  if (mb.drawn) step.memory.release(labels);
  step.memory.release(all);
}

Tensor Head::gathered_stats(Step& step, Tensor logits, Tensor targets) const {
  Tensor own =
      step.memory.allocate(MemoryKind::temporaries, "logit statistics", logits.dtype, {logits.shape[0], 3});
  cross_entropy_stats(step.compute, own, logits, targets, part_, soft_cap_);
  return of_all_ranks(step, own);
}

Tensor Head::of_all_ranks(Step& step, Tensor own) {
  const Group& g = step.groups.inner();
  if (g.size() == 1) return own;
  Tensor all = step.memory.allocate(MemoryKind::temporaries, "logit statistics of all", own.dtype,
                                    {own.shape[0] * g.size(), own.shape[1]});
  g.all_gather(step.compute, all, own);
  step.memory.release(own);
  return all;
}

void Head::teach(Step& step, const MicroBatch& mb, Tensor taught, Tensor logits, Tensor targets,
                 int64_t first_row) const {
  const DistilledBatch& d = mb.distilled;
  if (d.teacher) return d.teacher->logits(step, taught, first_row);
  const int64_t n = taught.shape[0];
  Tensor own = step.memory.allocate(MemoryKind::temporaries, "statistics of logits without a record",
                                    logits.dtype, {n, kRestStats});
  spread_top_logits(step.compute, taught, own, logits, d.recorded.ids.narrow(first_row, n),
                    d.recorded.values.narrow(first_row, n), targets, part_, d.loss.temperature, soft_cap_);
  Tensor all = of_all_ranks(step, own);
  fill_rest_logits(step.compute, taught, logits, d.recorded.rest.narrow(first_row, n), targets, all, part_,
                   d.loss.temperature, soft_cap_);
  step.memory.release(all);
}

void Head::chunk_distillation(Step& step, const MicroBatch& mb, Tensor logits, Tensor taught, Tensor targets,
                              Tensor grad) const {
  const DistilledBatch& d = mb.distilled;
  Tensor own = step.memory.allocate(MemoryKind::temporaries, "statistics of both models' logits",
                                    logits.dtype, {logits.shape[0], kDistillationStats});
  distillation_stats(step.compute, own, logits, taught, targets, part_, d.loss.temperature, soft_cap_);
  Tensor all = of_all_ranks(step, own);
  distillation(step.compute, mb.loss, d.divergence, grad, logits, taught, targets, all, part_, d.loss,
               mb.gradient_scale(), soft_cap_);
  step.memory.release(all);
}

Tensor Head::loss(Step& step, const MicroBatch& mb, Residual& r, const AlsoReads& also) const {
  step.enter(kHeadLayer);
  NormLayer::Saved saved;
  norm_.forward(step, r, saved);
  if (mb.observer) mb.observer->residual(step.compute, saved.x);
  Tensor dy;
  if (step.training) dy = step.temporary("d norm", saved.y.shape);
  switch (step.groups.mesh.tensor_mode) {
    case TensorMode::one_d:
      scores_texts_ ? score_loss(step, mb, saved.y, dy) : line_loss(step, mb, saved.y, dy);
      if (step.training && also) {
        also(saved.y, dy);
        saved.y = Tensor();
        step.enter(kHeadLayer);
      }
      if (step.training) weight_done(step);
      break;
    case TensorMode::two_d:
      loss_2d(step, mb, saved.y, dy);
      break;
    case TensorMode::three_d:
      loss_3d(step, mb, saved.y, dy);
      break;
  }
  if (!step.training) {
    step.release(saved.y);
    step.release(r.x);
    return {};
  }
  Tensor dx = step.temporary("d residual", dy.shape);
  norm_.backward(step, dx, dy, saved, /*first=*/true);
  step.release(dy);
  step.release(saved.y);
  r.x = Tensor();
  return dx;
}

Head::Logits Head::make_logits(Step& step, int64_t rows) const {
  Logits l;
  l.values =
      step.memory.allocate(MemoryKind::temporaries, "logits of a chunk", step.stat_type(), {rows, vocab_});
  if (!step.training) return l;
  l.gradient = l.values;
  if (step.dtype != step.stat_type()) l.gradient = step.temporary("d logits of a chunk", {rows, vocab_});
  return l;
}

void Head::release_logits(Step& step, Logits& l) const {
  if (step.training && step.dtype != step.stat_type()) step.release(l.gradient);
  step.release(l.values);
}

void Head::chunk_backward(Step& step, Tensor dx, Tensor grad, Tensor x, const GradBuffer* to,
                          bool first) const {
  if (to && multiplies_fp8(step)) step.fp8->expect_both(fp8_.slot, grad);
  product(step, dx, grad, step.params.value(weight_));
  if (!to) return;
  MatmulArgs outer;
  outer.trans_a = true;
  outer.accumulate = to->accumulate || !first;
  product(step, to->tensor, grad, x, outer);
}

void Head::line_loss(Step& step, const MicroBatch& batch, Tensor y, Tensor dy) const {
  MicroBatch mb = batch;
  const int64_t rows = mb.rows(), chunk = line_chunk_rows(step, rows);
  const Tensor weight = step.params.value(weight_);
  Tensor whole = gather_rows(step, y, "gathered rows");
  Logits logits = make_logits(step, chunk);
  if (mb.pairs.on()) sum_pairs(step, mb, whole, logits.values);
  if (mb.pairs.on() && !step.training) {
    release_logits(step, logits);
    return release_whole(step, whole, y);
  }
  const bool held = multiplies_fp8(step) && chunk < rows;
  if (held) step.fp8->hold_weight(step, fp8_);
  Tensor partial, taught;
  if (mb.distilled.on()) {
    if (mb.distilled.teacher) mb.distilled.teacher->begin_logits(step);
    taught = step.memory.allocate(MemoryKind::temporaries, "teacher's logits of a chunk", step.stat_type(),
                                  {chunk, vocab_});
  }
  GradBuffer to;
  const bool trains = step.training && step.params.trains(weight_);
  if (step.training) partial = partial_rows(step, dy, rows, "partial gradient");
  if (trains) to = step.params.accumulate(weight_);
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const Tensor x = whole.narrow(first, n), out = logits.values.narrow(0, n);
    MatmulArgs project;
    project.trans_b = true;
    product(step, out, x, weight, project);
    const Tensor grad = step.training ? logits.gradient.narrow(0, n) : Tensor();
    if (taught.defined()) {
      teach(step, mb, taught.narrow(0, n), out, mb.targets.narrow(first, n), first);
      chunk_distillation(step, mb, out, taught.narrow(0, n), mb.targets.narrow(first, n), grad);
    } else {
      if (mb.take_logits) (*mb.take_logits)(out, first);
      chunk_loss(step, mb, out, mb.targets.narrow(first, n), first, grad);
    }
    if (step.training)
      chunk_backward(step, partial.narrow(first, n), grad, x, trains ? &to : nullptr, first == 0);
  }
  if (held) step.fp8->release_weight(step, fp8_.slot);
  if (mb.pairs.on()) step.memory.release(mb.pairs.weights);
  if (taught.defined()) {
    step.memory.release(taught);
    if (mb.distilled.teacher) mb.distilled.teacher->end_logits(step);
  }
  release_logits(step, logits);
  release_whole(step, whole, y);
  if (!step.training) return;
  sum_rows_start(step, dy, partial).wait(step);
}

Tensor Head::final_rows(Step& step, Residual& r) const {
  step.enter(kHeadLayer);
  NormLayer::Saved saved;
  norm_.forward(step, r, saved);
  step.release(r.x);
  return saved.y;
}

void Head::project(const Step& step, Tensor out, Tensor rows) const {
  MatmulArgs args;
  args.trans_b = true;
  matmul(step.compute, out, rows, step.params.value(weight_), args);
  if (soft_cap_ > 0) soft_cap_logits(step.compute, out, soft_cap_);
}

void Head::logits(Step& step, Residual& r, Tensor out, int64_t first_row) const {
  LT_CHECK(!scores_texts_, "logits: expected an output layer, got {}", "the head of a reward model");
  LT_CHECK(step.groups.one_d() && !step.cuts_rows(),
           "logits: expected tensor parallelism in 1D without sharded rows, got {} ranks and sharded rows {}",
           step.groups.inner().size(), step.cuts_rows());
  Tensor y = final_rows(step, r);
  const int64_t n = out.shape[0];
  const bool cut = step.groups.tensor.size() > 1;
  Tensor own = out;
  if (cut)
    own = step.memory.allocate(MemoryKind::temporaries, "logits of a part of the vocabulary", out.dtype,
                               {n, vocab_});
  project(step, own, y.narrow(first_row, n));
  if (cut) {
    fill_zero(step.compute, out);
    copy_rectangles(step.compute, out, own, {{n, part_.columns, 0, 0, 0, part_.first}});
    place_as(step.compute, "logits of all tokens", Axis::tensor, out, Placement::S(1), Placement::P());
    step.memory.release(own);
  }
  step.release(y);
}

}  // namespace ltrain
