#include "models/attention/attention_layer.h"

#include <algorithm>

#include "kernels/attention/attention_sinks.h"
#include "kernels/attention/rope.h"
#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/norm/clip_qkv.h"
#include "models/attention/attention_workspace.h"

namespace ltrain {

void AttentionLayer::declare(ParameterStore& store, const Groups& groups, const ModelConfig& c,
                             bool sequence_parallel, const std::string& prefix, std::string place,
                             double out_std, int64_t layer) {
  const int64_t ranks = groups.inner().size();
  head_dim_ = c.head_dim;
  dropout_ = c.attn_pdrop;
  place_ = std::move(place);
  all_heads_ = c.num_attention_heads;
  heads_ = all_heads_ / ranks;
  copies_ = groups.one_d() ? kv_replication(c.num_key_value_heads, ranks) : 1;
  kv_heads_ = c.num_key_value_heads * copies_ / ranks;
  first_head_ = groups.inner().rank() * heads_;
  LT_CHECK(heads_ * ranks == all_heads_ && kv_heads_ * ranks == c.num_key_value_heads * copies_,
           "attention: expected heads divisible over {} tensor-parallel ranks, got {} heads and {} key-value "
           "heads",
           ranks, all_heads_, c.num_key_value_heads);
  const int64_t q = all_heads_ * head_dim_, kv = c.num_key_value_heads * head_dim_, h = c.hidden_size;
  const ModelTraits& t = c.traits();
  const ParameterNames& names = c.names();
  const auto part = [&](const std::string& name, int64_t rows, int64_t first, int copies) {
    if (names.fused_qkv.empty()) return LinearPart{prefix + "." + name, rows, 0, 0, copies};
    return LinearPart{prefix + "." + names.fused_qkv, rows, first, q + 2 * kv, copies};
  };
  layer_ = layer;
  rope_ = c.rotates(layer);
  window_ = c.window(layer);
  scale_ = c.attention_scale();
  soft_cap_ = c.attn_logit_softcapping.value_or(0);
  clip_ = c.clip_qkv.value_or(0);
  LT_CHECK(clip_ == 0 || t.query_key_norm != QueryKeyNorm::none,
           "{}: expected norms of queries and keys where these are clamped, got none", place_);
  latent_ = t.latent_attention;
  interleaved_ = t.interleaved_rotation;
  value_dim_ = c.value_dim();
  if (latent_) {
    latents_.declare(store, groups, c, sequence_parallel, prefix);
    return out_.declare(store, groups, sequence_parallel, {{prefix + "." + names.attention_output, h}},
                        all_heads_ * value_dim_, false, out_std, LinearSharding::row, c.lora);
  }
  std::vector<LinearPart> query{part(names.query, q, 0, 1)};
  const std::vector<LinearPart> key_value{part(names.key, kv, q, copies_),
                                          part(names.value, kv, q + kv, copies_)};
  const auto declare = [&](Linear& linear, const std::vector<LinearPart>& parts) {
    linear.declare(store, groups, sequence_parallel, parts, h, t.qkv_bias, c.initializer_range,
                   LinearSharding::column, c.lora);
  };
  if (copies_ > 1) {  // gradients of keys and values take another path than the queries'
    declare(kv_, key_value);
  } else {
    query.insert(query.end(), key_value.begin(), key_value.end());
  }
  declare(qkv_, query);
  declare_norms(store, groups, c, prefix);
  declare_sinks(store, groups, c, prefix);
  out_.declare(store, groups, sequence_parallel, {{prefix + "." + names.attention_output, h}}, q,
               t.attention_output_bias, out_std, LinearSharding::row, c.lora);
}

void AttentionLayer::declare_sinks(ParameterStore& store, const Groups& groups, const ModelConfig& c,
                                   const std::string& prefix) {
  if (!c.traits().attention_sinks) return;
  LT_CHECK(groups.one_d(), "attention sinks: expected tensor parallelism in 1D, got {} ranks in another mode",
           groups.inner().size());
  ParameterSpec spec{.name = prefix + "." + c.names().sinks,
                     .shape = {all_heads_},
                     .init = Init::normal,
                     .std = c.initializer_range,
                     .decay = false};
  spec = cut_over(Axis::tensor, std::move(spec), 0, groups.tensor.rank(), groups.tensor.size());
  sinks_ = store.add({spec});
}

AttentionShape AttentionLayer::shape(const MicroBatch& mb) const {
  return {mb.batch,   mb.cut.ranks > 1 ? mb.cut.seq : mb.seq,
          heads_,     kv_heads_,
          head_dim_,  first_head_,
          all_heads_, window_,
          scale_,     soft_cap_,
          value_dim_};
}

void AttentionLayer::forward(Step& step, const MicroBatch& batch, Tensor y, Tensor x, Tensor rope_table,
                             Saved& saved) const {
  recompute(step, batch, x, rope_table, saved);
  output(step, y, saved);
  if (!step.keeps())
    for (Tensor* t : {&saved.qkv, &saved.out, &saved.lse, &saved.exchanged_out}) step.release(*t);
}

void AttentionLayer::recompute(Step& step, const MicroBatch& batch, Tensor x, Tensor rope_table,
                               Saved& saved) const {
  const MicroBatch mb = batch.inside();
  if (!saved.qkv.defined()) {
    saved.qkv = step.activation("qkv", {mb.rows(), shape(mb).qkv_width()});
    project(step, saved.qkv, x, saved);
    norm(step, saved.qkv, saved);
    if (clip_ > 0) clip_qkv_forward(step.compute, saved.qkv, clip_);
    rotate(step, mb, saved.qkv, rope_table, false);
  }
  if (saved.out.defined()) return;
  const Dropout drop = step.dropout(dropout_, place_ + ".probabilities", mb);
  if (step.generation) {
    extend(step, mb, saved);
  } else if (step.groups.context.size() > 1) {
    context_attention_forward(step, mb, shape(mb), drop, sinks(step), saved);
  } else {
    saved.out = step.activation("attention", {mb.rows(), heads_ * value_dim_});
    saved.lse = step.statistic("lse", {mb.batch, heads_, mb.seq});
    attention_forward(step.compute, saved.out, saved.lse, saved.qkv, shape(mb), drop, mb.documents);
    if (sinks_ >= 0) attention_sinks_forward(step.compute, saved.out, saved.lse, sinks(step), 0);
  }
}

void AttentionLayer::extend(Step& step, const MicroBatch& mb, Saved& saved) const {
  const AttentionShape whole = shape(mb);
  const int64_t q_width = whole.q_width(), out_width = whole.out_width(), width = whole.qkv_width();
  const int64_t kv_width = width - q_width;
  saved.out = step.activation("attention", {mb.rows(), out_width});
  saved.lse = step.statistic("lse", {mb.rows(), heads_});  // for each text (heads, rows)
  int64_t first = 0;
  for (const auto& [cache, count] : step.generation->texts) {
    const Tensor kept = cache->layers[static_cast<size_t>(layer_)];
    copy_rectangles(step.compute, kept, saved.qkv, {{count, kv_width, first, q_width, cache->length, 0}});
    const int64_t end = cache->length + count;
    const int64_t begin =
        window_ ? std::max<int64_t>(0, cache->length + 1 - window_) : 0;  // first key that row `first` sees
    const Tensor seen = kept.flat(begin * kv_width, {end - begin, kv_width});
    AttentionBlock b;
    b.shape = whole;
    b.shape.seq = cache->capacity;
    b.q = {saved.qkv.flat(first * width, {count, width}), 0};
    b.k = {seen, 0};
    b.v = {seen, whole.k_width()};
    b.q_at = Positions::run(cache->length, count, cache->capacity);
    b.k_at = Positions::run(begin, end - begin, cache->capacity);
    const Tensor out = saved.out.flat(first * out_width, {count, out_width}),
                 lse = saved.lse.flat(first * heads_, {heads_, count});
    attention_block_forward(step.compute, out, lse, b);
    if (sinks_ >= 0)
      attention_sinks_forward(step.compute, out, lse.flat(0, {1, heads_, count}), sinks(step), 0);
    first += count;
  }
  LT_CHECK(first == mb.rows(), "expected {} rows of texts in the forward, got {}", mb.rows(), first);
}

void AttentionLayer::backward(Step& step, const MicroBatch& batch, Tensor dx, Tensor dy, Tensor x,
                              Tensor rope_table, Saved& saved) const {
  const MicroBatch mb = batch.inside();
  Tensor dout = step.temporary("d attention", saved.out.shape);
  out_.backward(step, dout, dy, saved.out);
  // Attention's own backward overlaps it; with two projections, each gathers for itself.
  const Gathered ahead = latent_ || copies_ > 1 ? Gathered() : qkv_.gather_ahead(step, x);
  Tensor dqkv = step.temporary("d qkv", {mb.rows(), shape(mb).qkv_width()});
  const Dropout drop = step.dropout(dropout_, place_ + ".probabilities", mb);
  AttentionSinks grads;
  if (sinks_ >= 0) {
    const GradBuffer to = step.params.accumulate(sinks_);
    grads = {sinks(step), to.tensor, to.accumulate};
  }
  if (step.groups.context.size() > 1) {
    context_attention_backward(step, mb, shape(mb), drop, grads, dqkv, dout, saved, clip_);
  } else {
    if (sinks_ >= 0)
      attention_sinks_backward(step.compute, grads.gradient, dout, saved.out, saved.lse, grads.value, 0,
                               grads.accumulate);
    CudnnWorkspace workspace = attention_workspace(step, shape(mb), drop, mb.documents);
    attention_backward(step.compute, dqkv, dout, saved.qkv, saved.out, saved.lse, shape(mb), drop,
                       mb.documents, workspace);
    step.release(workspace.memory);
    if (clip_ > 0)
      clip_values_backward(step.compute, dqkv, saved.qkv, (heads_ + kv_heads_) * head_dim_, clip_);
  }
  if (sinks_ >= 0) step.params.grad_ready(sinks_);
  for (Tensor* t : {&dout, &saved.qkv, &saved.out, &saved.lse, &saved.exchanged_out}) step.release(*t);
  rotate(step, mb, dqkv, rope_table, true);
  clip_heads(step, dqkv, saved);
  norm_backward(step, dqkv, saved);
  project_backward(step, dx, dqkv, x, saved, ahead);
  step.release(dqkv);
}

void AttentionLayer::quantize_operands(const ParameterStore& store, const Fp8Settings& settings,
                                       int first_slot, std::vector<Fp8Weight>& weights) {
  LT_CHECK(copies_ == 1 && !latent_,
           "{}: expected one rank for each key-value head and no latents in FP8, got {} ranks and latent "
           "attention {}",
           place_, copies_, latent_);
  qkv_.quantize_operands(store, settings, fp8_slot(first_slot, Fp8Linear::qkv), weights);
  out_.quantize_operands(store, settings, fp8_slot(first_slot, Fp8Linear::output), weights);
}

void AttentionLayer::rotate(Step& step, const MicroBatch& mb, Tensor qkv, Tensor rope_table,
                            bool inverse) const {
  if (!rope_) return;
  const int64_t first = latent_ ? latents_.heads().nope : 0;
  rope(step.compute, qkv, rope_table, step.whole_rows(mb),
       {heads_ + kv_heads_, head_dim_, first, interleaved_}, inverse);
}

void AttentionLayer::output(Step& step, Tensor y, const Saved& saved) const {
  out_.forward(step, y, saved.out);
}

void AttentionLayer::project(Step& step, Tensor qkv, Tensor x, Saved& saved) const {
  if (latent_) return latents_.forward(step, qkv, x, saved.latent);
  if (copies_ == 1) return qkv_.forward(step, qkv, x);
  const int64_t rows = qkv.shape[0], q_width = qkv_.out_features(), kv_width = kv_.out_features();
  Tensor q = step.temporary("q", {rows, q_width}), kv = step.temporary("kv", {rows, kv_width});
  qkv_.forward(step, q, x);
  kv_.forward(step, kv, x);
  copy_rectangles(step.compute, qkv, q, {{rows, q_width, 0, 0, 0, 0}});
  copy_rectangles(step.compute, qkv, kv, {{rows, kv_width, 0, 0, 0, q_width}});
  step.release(q);
  step.release(kv);
}

void AttentionLayer::project_backward(Step& step, Tensor dx, Tensor dqkv, Tensor x, Saved& saved,
                                      const Gathered& ahead) const {
  if (latent_) return latents_.backward(step, dx, dqkv, x, saved.latent);
  if (copies_ == 1) return qkv_.backward(step, dx, dqkv, x, ahead);
  const int64_t rows = dqkv.shape[0], q_width = qkv_.out_features(), kv_width = kv_.out_features();
  Tensor dq = step.temporary("d q", {rows, q_width}), dkv = step.temporary("d kv", {rows, kv_width});
  copy_rectangles(step.compute, dq, dqkv, {{rows, q_width, 0, 0, 0, 0}});
  copy_rectangles(step.compute, dkv, dqkv, {{rows, kv_width, 0, q_width, 0, 0}});
  Tensor more = step.temporary("d norm of kv", dx.shape);
  qkv_.backward(step, dx, dq, x);
  kv_.backward(step, more, dkv, x);
  add_to(step.compute, dx, more);
  for (Tensor* t : {&dq, &dkv, &more}) step.release(*t);
}

}  // namespace ltrain
