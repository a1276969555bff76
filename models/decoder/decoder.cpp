#include "models/decoder/decoder.h"

#include <cmath>
#include <utility>

#include "kernels/elementwise/embedding.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/micro_batch_overlap.h"
#include "kernels/tensor/staging.h"
#include "models/attention/rope_angles.h"
#include "models/layers/tensor_parallel.h"
#include "models/tensor_parallel/tensor_parallel_3d.h"

namespace ltrain {
namespace {

void count_as_model_work(Step& step, bool on) {
  if (step.compute.overlap)
    step.compute.overlap->set_model_work(on);
  else if (step.compute.meta())
    step.compute.meta()->set_model_work(on);
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, ParameterStore& store, const Groups& groups,
                 const DecoderOptions& options)
    : config_(config),
      stages_(options.stages),
      recompute_(options.recompute),
      offload_(options.offload),
      blocks_(config.num_hidden_layers),
      sequence_parallel_(options.sequence_parallel && groups.tensor.size() > 1) {
  const ModelConfig& c = config_;
  if (stages_.empty()) stages_.push_back({0, c.num_hidden_layers, true, true});
  for (const StageLayers& stage : stages_) {
    if (stage.embeds) declare_embedding(store, groups, options.decay_embeddings);
    for (int64_t i = stage.first; i < stage.first + stage.count; ++i) {
      store.begin_segment(layer_segment(i), i - stage.first);
      blocks_[i].declare(store, groups, c, sequence_parallel_, options.expert_tensor, options.dispatch, i);
    }
    if (stage.heads) declare_head(store, groups, options);
  }
}

void Decoder::declare_head(ParameterStore& store, const Groups& groups, const DecoderOptions& options) {
  const ModelConfig& c = config_;
  modules_.resize(static_cast<size_t>(c.num_nextn_predict_layers));
  modules_scale_ = c.mtp_loss_scaling_factor;
  for (size_t k = 0; k < modules_.size(); ++k) {
    const int64_t layer = c.num_hidden_layers + static_cast<int64_t>(k);
    store.begin_segment(layer_segment(layer));
    modules_[k].declare(store, groups, c, sequence_parallel_, options.expert_tensor, options.dispatch, layer);
  }
  store.begin_segment(head_segment());
  head_.declare(store, groups, c, sequence_parallel_, options.decay_embeddings, tokens_);
  if (modules_.empty()) return;
  vocab_ = vocabulary_part(groups, c);
  modules_tokens_ = has_embedding_          ? tokens_
                    : c.tie_word_embeddings ? head_.weight()
                                            : store.add({token_table(groups, options.decay_embeddings)});
}

std::vector<Fp8Weight> Decoder::quantize_operands(const ParameterStore& store, const Fp8Settings& settings) {
  std::vector<Fp8Weight> weights;
  const bool experts = config_.moe.num_experts > 0;
  bool heads = false;
  for (const StageLayers& stage : stages_) {
    heads = heads || stage.heads;
    for (int64_t i = stage.first; i < stage.first + stage.count; ++i)
      if (i >= settings.first_layers && i < config_.num_hidden_layers - settings.last_layers)
        blocks_[i].quantize_operands(store, settings, static_cast<int>(i) * fp8_slots(experts), weights);
  }
  if (settings.output_layer && heads)
    head_.quantize_operands(store, settings,
                            static_cast<int>(fp8_output_slot(config_.num_hidden_layers, experts)), weights);
  return weights;
}

ParameterSpec Decoder::token_table(const Groups& groups, bool decay) const {
  ParameterSpec tokens = vocabulary_weight(groups, config_, config_.names().tokens + ".weight");
  tokens.decay = decay;
  tokens.tied_stages = config_.shares_embedding();
  return tokens;
}

void Decoder::declare_embedding(ParameterStore& store, const Groups& groups, bool decay) {
  const ModelConfig& c = config_;
  has_embedding_ = true;
  store.begin_segment(kEmbedding);
  vocab_ = vocabulary_part(groups, c);
  tokens_ = store.add({token_table(groups, decay)});
  if (c.traits().positions != PositionEmbedding::learned) return;
  ParameterSpec positions{.name = c.names().positions + ".weight",
                          .shape = {c.max_position_embeddings, c.hidden_size},
                          .init = Init::normal,
                          .std = c.initializer_range,
                          .decay = decay};
  positions.embedding = true;
  if (sequence_parallel_) positions.sum = Axis::tensor;
  if (!groups.one_d()) {
    positions = cut_over(Axis::column, std::move(positions), 1, groups.column.rank(), groups.column.size());
    positions.sum = Axis::depth | Axis::row;
  }
  positions_ = store.add({positions});
}

void Decoder::allocate(Stream& compute, Memory& memory, int64_t seq, bool texts) {
  if (config_.traits().positions != PositionEmbedding::rotary) return;
  table_rows_ = seq;
  short_texts_ = texts ? rope_switch(config_, seq) : 0;
  const auto table = [&](const ModelConfig& config, const char* name) {
    const Tensor t = memory.allocate(MemoryKind::temporaries, name, DType::f32,
                                     {seq + short_texts_, config.rotary_dim() / 2, 2});
    place_set(compute, t, kAllAxes, Placement::R());
    if (compute.meta()) return t;
    std::vector<float> angles = rope_angles(config, seq);
    const std::vector<float> of_short = rope_angles(config, short_texts_);
    angles.insert(angles.end(), of_short.begin(), of_short.end());
    upload(compute, t, angles.data());
    return t;
  };
  rope_table_ = table(config_, "rope angles");
  if (config_.rope_local_base_freq > 0)
    local_rope_table_ = table(local_rotation(config_), "rope angles of windows");
}

void Decoder::embed(Step& step, const MicroBatch& mb, Residual& r) const {
  step.enter(kEmbeddingLayer);
  step.params.gather_segment(kEmbedding, layer_segment(stages_[0].first));
  r.x = step.activation("embedding", {step.stream_rows(mb), step.stream_cols(config_.hidden_size)});
  const RowMap rows = step.row_map(mb);
  const Tensor positions = positions_ >= 0 ? step.params.value(positions_) : Tensor();
  if (step.groups.one_d()) {
    look_up(step, mb, r.x, tokens_, positions, rows);
  } else {
    look_up_cut(step, mb, r.x);
    if (positions.defined()) position_forward(step.compute, r.x, positions, rows);
  }
  if (config_.traits().scaled_embedding) scale_by(step.compute, r.x, embedding_scale());
  if (const Dropout d = step.dropout(config_.embd_pdrop, "embedding", mb); d.on())
    dropout(step.compute, r.x, r.x, d);
  step.params.release_segment(kEmbedding);
}

double Decoder::embedding_scale() const { return std::sqrt(static_cast<float>(config_.hidden_size)); }

void Decoder::look_up(Step& step, const MicroBatch& mb, Tensor x, int table, Tensor positions,
                      const RowMap& rows) const {
  const bool cut = step.groups.tensor.size() > 1;  // then positions are added once, after the sum
  const Tensor partial = partial_rows(step, x, mb.rows(), "partial embedding");
  embedding_forward(step.compute, partial, mb.tokens, step.params.value(table), cut ? Tensor() : positions,
                    rows, vocab_);
  if (!cut) return;
  sum_rows_start(step, x, partial).wait(step);
  if (positions.defined()) position_forward(step.compute, x, positions, rows);
}

void Decoder::look_up_cut(Step& step, const MicroBatch& mb, Tensor x) const {
  // each rank looks up its part of the vocabulary for the rows of all ranks
  const Group& g = step.groups.row;
  Tensor partial = summand_rows(step, g, x, "partial embedding");
  const auto forward = [&](Tensor table) {
    embedding_forward(step.compute, partial, mb.tokens, table, {}, RowMap(), vocab_);
  };
  if (step.groups.mesh.tensor_mode == TensorMode::three_d) {
    GatheredWeight table = gather_weight_start(step, tokens_, 1);
    forward(table.wait(step));
    table.release(step);
  } else {
    forward(step.params.value(tokens_));
  }
  scatter_sum_start(step, g, x, partial).wait(step.compute);
  release_whole(step, partial, x);
}

void Decoder::look_up_cut_backward(Step& step, const MicroBatch& mb, Tensor dx) const {
  if (!step.params.trains(tokens_)) return;
  Gathered whole = gather_start(step, step.groups.row, dx, "gathered gradient");
  const GradBuffer to = step.params.accumulate(tokens_);  // a tied head has already written to it
  const auto backward = [&](Tensor table, bool accumulate) {
    embedding_backward(step.compute, table, whole.wait(step), mb.tokens, vocab_, accumulate);
  };
  if (step.groups.mesh.tensor_mode == TensorMode::three_d) {
    WeightSum3d sum(step, to, tokens_, 1);
    backward(sum.summand(), sum.accumulate());
    sum.finish();
  } else {
    backward(to.tensor, to.accumulate);
  }
  release_whole(step, whole.whole, dx);
  step.params.grad_ready(tokens_);
}

void Decoder::embed_backward(Step& step, const MicroBatch& mb, Tensor dx) const {
  step.enter(kEmbeddingLayer);
  if (const Dropout d = step.dropout(config_.embd_pdrop, "embedding", mb); d.on())
    dropout(step.compute, dx, dx, d);
  if (config_.traits().scaled_embedding) scale_by(step.compute, dx, embedding_scale());
  if (positions_ >= 0 && step.params.trains(positions_)) {
    const GradBuffer to = step.params.accumulate(positions_);
    position_backward(step.compute, to.tensor, dx, step.row_map(mb), to.accumulate);
    step.params.grad_ready(positions_);
  }
  if (!step.groups.one_d()) return look_up_cut_backward(step, mb, dx);
  look_up_backward(step, mb, dx, tokens_);
  step.params.grad_ready(tokens_);
}

void Decoder::look_up_backward(Step& step, const MicroBatch& mb, Tensor dx, int table) const {
  if (!step.params.trains(table)) return;
  Tensor whole = gather_rows(step, dx, "gathered gradient");
  const GradBuffer to = step.params.accumulate(table);  // a tied head has already written to it
  embedding_backward(step.compute, to.tensor, whole, mb.tokens, vocab_, to.accumulate);
  release_whole(step, whole, dx);
}

void Decoder::predict_more(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const {
  const int64_t modules = static_cast<int64_t>(modules_.size());
  std::vector<PredictionModule::Saved> saved(modules_.size());
  std::vector<Tensor> gradients{dy};  // gradients of each module's input, and of the last one's result
  const auto place = [&](int64_t k) { return config_.place(config_.num_hidden_layers + k); };
  const auto segment = [&](int64_t k) { return layer_segment(config_.num_hidden_layers + k); };
  const auto dropped = [&](int64_t k) {
    return step.dropout(config_.embd_pdrop, place(k) + ".embedding", mb);
  };
  for (int64_t k = 0; k < modules; ++k) {
    step.enter(place(k));
    step.params.gather_segment(segment(k), k + 1 < modules ? segment(k + 1) : -1);
    const MicroBatch of = mb.of_module(k, modules, modules_scale_);
    const PredictionModule& module = modules_[static_cast<size_t>(k)];
    Tensor x = step.activation("embedding", y.shape);
    look_up(step, of, x, modules_tokens_, {}, step.row_map(mb));
    if (const Dropout d = dropped(k); d.on()) dropout(step.compute, x, x, d);
    y = module.forward(step, mb, x, y, rope_table_, saved[static_cast<size_t>(k)]);
    gradients.push_back(step.temporary("d norm", y.shape));
    head_.loss_of(step, of, y, gradients.back());
  }
  step.release(y);
  for (int64_t k = modules; k-- > 0;) {
    const size_t i = static_cast<size_t>(k);
    Tensor dx = modules_[i].backward(step, mb, gradients[i + 1], gradients[i], rope_table_, saved[i]);
    step.params.release_segment(segment(k));
    if (const Dropout d = dropped(k); d.on()) dropout(step.compute, dx, dx, d);
    look_up_backward(step, mb.of_module(k, modules, modules_scale_), dx, modules_tokens_);
    step.release(dx);
  }
  // If it is shared with the output layer or the embedding, they report it.
  if (modules_tokens_ != tokens_ && modules_tokens_ != head_.weight())
    step.params.grad_ready(modules_tokens_);
}

void Decoder::run_blocks(Step& step, const MicroBatch& mb, int stage, Residual& r, Saved& saved) const {
  const StageLayers& s = stages_[stage];
  saved.blocks.assign(s.count, {});
  const bool saving = step.saving;
  const int64_t away =
      step.keeps() && step.offloaded ? layers_offloaded(offload_, s.count, s.embeds && s.heads) : 0;
  for (const LayerRun& run : layer_runs(step.training ? recompute_ : RecomputeOptions(), s.count)) {
    step.saving = saving && !run.recompute;
    for (int64_t i = run.first; i < run.first + run.count; ++i) {
      const int64_t layer = s.first + i;
      const int next = i + 1 < s.count ? layer_segment(layer + 1) : s.heads ? head_segment() : -1;
      // At most one layer beyond those that the other backward has released.
      if (step.compute.overlap) step.compute.overlap->wait_for_count(i - 1);
      step.params.gather_segment(layer_segment(layer), next);
      Block::Keep keep;
      keep.input = run.recompute && i == run.first;
      keep.without = run.tensors;
      keep.compressed = run.compressed;
      blocks_[layer].forward(step, mb, r, rope_table(layer), saved.blocks[i], keep);
      if (run.recompute && !keep.input) saved.blocks[i].norm1.x = Tensor();
      if (run.recompute) saved.blocks[i].norm2.x = Tensor();
      const bool leaves = i < away && i == run.first;  // the first of recomputed layers has a saved input
      if (leaves) blocks_[layer].offload(step, saved.blocks[i], offload_);
      if (step.offloaded) step.offloaded->reclaim(leaves ? &saved.blocks[i].offloaded : nullptr);
      step.params.release_segment(layer_segment(layer));
    }
    step.saving = saving;
  }
}

void Decoder::recompute_run(Step& step, const MicroBatch& mb, const StageLayers& s, const LayerRun& run,
                            Saved& saved) const {
  WeightGradients* later = std::exchange(step.deferred, nullptr);
  count_as_model_work(step, false);
  Residual r;
  r.x = saved.blocks[run.first].norm1.x;
  r.kept = true;
  for (int64_t i = run.first; i < run.first + run.count; ++i) {
    const int64_t layer = s.first + i;
    const bool last = i + 1 == run.first + run.count;
    step.params.gather_segment(layer_segment(layer), last ? -1 : layer_segment(layer + 1));
    if (run.recompute) {
      Block::Saved before;
      before.moe = std::move(saved.blocks[i].moe);  // tokens keep their routing, and are not counted again
      saved.blocks[i] = std::move(before);
      Block::Keep keep;
      keep.output = !last;
      keep.recompute = true;
      blocks_[layer].forward(step, mb, r, rope_table(layer), saved.blocks[i], keep);
    } else {
      blocks_[layer].recompute(step, mb, rope_table(layer), saved.blocks[i]);
    }
    if (!last) step.params.release_segment(layer_segment(layer));  // the last one's backward follows
  }
  count_as_model_work(step, true);
  step.deferred = later;
}

Tensor Decoder::forward(Step& step, const MicroBatch& mb, int stage, Tensor input, Saved& saved) const {
  const StageLayers& s = stages_[stage];
  if (mb.distilled.teacher) mb.distilled.teacher->forward(step, mb);
  Residual r;
  if (s.embeds) {
    embed(step, mb, r);
  } else {
    r.x = input;
  }
  run_blocks(step, mb, stage, r, saved);
  if (s.heads) {
    MicroBatchOverlap::after_other(
        step.compute);  // its backward runs here, and a tied table has the gradients of both ends
    gather_head(step);
    Head::AlsoReads also;
    if (!modules_.empty()) also = [&](Tensor y, Tensor dy) { predict_more(step, mb, y, dy); };
    if (step.generation)
      head_.logits(step, r, step.generation->logits, step.generation->first_row);
    else
      saved.dx = head_.loss(step, mb, r, also);
    release_head(step);
    return {};
  }
  Tensor out = step.activation("stage output", r.x.shape);
  residual_add(step.compute, out, r.x, r.delta, r.dropout);
  step.release(r.delta);
  if (!r.kept) step.release(r.x);
  return out;
}

void Decoder::gather_head(Step& step) const {
  step.params.gather_segment(head_segment());
  if (config_.shares_embedding() && has_embedding_) step.params.gather_segment(kEmbedding);
}

void Decoder::release_head(Step& step) const {
  step.params.release_segment(head_segment());
  if (config_.shares_embedding() && has_embedding_) step.params.release_segment(kEmbedding);
}

Tensor Decoder::final_rows(Step& step, const MicroBatch& mb) const {
  LT_CHECK(stages_.size() == 1 && stages_[0].embeds && stages_[0].heads && !step.training,
           "expected a forward without training of a model in one stage, got {} stages", stages_.size());
  Residual r;
  embed(step, mb, r);
  Saved unused;
  run_blocks(step, mb, 0, r, unused);
  step.params.gather_segment(head_segment());
  const Tensor y = head_.final_rows(step, r);
  step.params.release_segment(head_segment());
  return y;
}

Tensor Decoder::backward(Step& step, const MicroBatch& mb, int stage, Tensor dout, Saved& saved) const {
  const StageLayers& s = stages_[stage];
  Tensor dx = s.heads ? saved.dx : dout;
  const std::vector<LayerRun> runs = layer_runs(recompute_, s.count);
  for (size_t k = runs.size(); k-- > 0;) {
    const LayerRun& run = runs[k];
    if (step.offloaded) {
      step.offloaded->need(saved.blocks[run.first].offloaded);
      if (k > 0) step.offloaded->prefetch(saved.blocks[runs[k - 1].first].offloaded);
      step.offloaded->reclaim();
    }
    if (run.recompute || run.tensors.bits || run.compressed.any()) recompute_run(step, mb, s, run, saved);
    for (int64_t i = run.first + run.count; i-- > run.first;) {
      const int64_t layer = s.first + i;
      // The layer before, or the first layer of the previous run if that is recomputed.
      const int64_t next = i > run.first ? i - 1 : k > 0 ? runs[k - 1].first : -1;
      step.params.gather_segment(layer_segment(layer), next >= 0 ? layer_segment(s.first + next) : -1);
      blocks_[layer].backward(step, mb, dx, rope_table(layer), saved.blocks[i]);
      step.params.release_segment(layer_segment(layer));
      if (step.compute.overlap) step.compute.overlap->count();
    }
  }
  if (!s.embeds) return dx;
  MicroBatchOverlap::after_other(step.compute);
  embed_backward(step, mb, dx);
  step.release(dx);
  return {};
}

}  // namespace ltrain
