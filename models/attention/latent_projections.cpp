#include "models/attention/latent_projections.h"

#include "kernels/elementwise/tensor_ops.h"
#include "models/layers/tensor_parallel.h"

namespace ltrain {

constexpr double kLatentEps = 1e-6;  // independent of rms_norm_eps, as in transformers' classes

void LatentProjections::declare(ParameterStore& store, const Groups& groups, const ModelConfig& c,
                                bool sequence_parallel, const std::string& prefix) {
  LT_CHECK(groups.one_d(),
           "latent attention: expected tensor parallelism in 1D, got {} ranks in another mode",
           groups.inner().size());
  const LatentAttention& l = c.latent;
  const ParameterNames& n = c.names();
  const int64_t all = c.num_attention_heads, width = l.qk_nope_head_dim + l.qk_rope_head_dim;
  heads_ = {all / groups.tensor.size(), l.qk_nope_head_dim, l.qk_rope_head_dim, l.v_head_dim};
  query_latent_ = l.q_lora_rank.has_value();
  const auto linear = [&](Linear& layer, const LinearPart& part, int64_t in, LinearSharding cut) {
    layer.declare(store, groups, sequence_parallel, {part}, in, false, c.initializer_range, cut,
                  part.all ? LoraConfig{} : c.lora);  // two layers share one matrix and would share A
  };
  const auto norm = [&](NormLayer& layer, const std::string& name, int64_t cols) {
    layer.declare(store, groups, prefix + "." + name, c.traits(), cols, kLatentEps, sequence_parallel);
  };
  using enum LinearSharding;
  if (query_latent_) {
    linear(query_down_, {prefix + "." + n.query_down, *l.q_lora_rank}, c.hidden_size, whole);
    norm(query_norm_, n.query_latent_norm, *l.q_lora_rank);
  }
  linear(query_up_, {prefix + "." + (query_latent_ ? n.query_up : n.query), all * width},
         query_latent_ ? *l.q_lora_rank : c.hidden_size, column);
  const std::string down = prefix + "." + n.key_value_down;
  const int64_t rows = l.kv_lora_rank + l.qk_rope_head_dim;
  linear(key_value_down_, {down, l.kv_lora_rank, 0, rows}, c.hidden_size, whole);
  linear(key_rope_, {down, l.qk_rope_head_dim, l.kv_lora_rank, rows}, c.hidden_size, whole);
  norm(key_value_norm_, n.key_value_latent_norm, l.kv_lora_rank);
  linear(key_value_up_, {prefix + "." + n.key_value_up, all * (l.qk_nope_head_dim + l.v_head_dim)},
         l.kv_lora_rank, column);
}

void LatentProjections::through(Step& step, const Linear& down, const NormLayer& norm, const Linear& up,
                                Tensor y, Tensor x, NormLayer::Saved& saved) const {
  Residual latent;
  latent.x = step.activation("latent", {x.shape[0], down.out_features()});
  latent.kept = true;
  down.forward(step, latent.x, x);
  norm.forward(step, latent, saved);
  up.forward(step, y, saved.y);
  if (step.keeps()) return;
  step.release(saved.x);
  step.release(saved.y);
}

void LatentProjections::through_backward(Step& step, const Linear& down, const NormLayer& norm,
                                         const Linear& up, Tensor dx, Tensor dy, Tensor x,
                                         NormLayer::Saved& saved) const {
  Tensor dnormed = step.temporary("d normed latent", saved.y.shape),
         dlatent = step.temporary("d latent", saved.y.shape);
  up.backward(step, dnormed, dy, saved.y);
  step.release(saved.y);
  norm.backward(step, dlatent, dnormed, saved, /*first=*/true);
  step.release(dnormed);
  down.backward(step, dx, dlatent, x);
  step.release(dlatent);
}

void LatentProjections::forward(Step& step, Tensor qkv, Tensor x, Saved& saved) const {
  const int64_t rows = qkv.shape[0];
  Tensor q = step.temporary("q", {rows, query_up_.out_features()}),
         kv = step.temporary("kv", {rows, key_value_up_.out_features()}),
         key_rope = step.temporary("shared part of keys", {x.shape[0], heads_.rope});
  if (query_latent_)
    through(step, query_down_, query_norm_, query_up_, q, x, saved.query);
  else
    query_up_.forward(step, q, x);
  through(step, key_value_down_, key_value_norm_, key_value_up_, kv, x, saved.key_value);
  key_rope_.forward(step, key_rope, x);
  Tensor shared = gather_rows(step, key_rope, "shared part of keys of all rows");
  latent_heads_forward(step.compute, qkv, q, kv, shared, heads_);
  release_whole(step, shared, key_rope);
  for (Tensor* t : {&q, &kv, &key_rope}) step.release(*t);
}

void LatentProjections::backward(Step& step, Tensor dx, Tensor dqkv, Tensor x, Saved& saved) const {
  const int64_t rows = dqkv.shape[0];
  Tensor dq = step.temporary("d q", {rows, query_up_.out_features()}),
         dkv = step.temporary("d kv", {rows, key_value_up_.out_features()}),
         dkey_rope = step.temporary("d shared part of keys", {x.shape[0], heads_.rope});
  const Tensor partial = partial_rows(step, dkey_rope, rows, "d shared part of keys, of these heads");
  latent_heads_backward(step.compute, dq, dkv, partial, dqkv, heads_);
  RowSum sum = sum_rows_start(step, dkey_rope, partial);
  if (query_latent_)
    through_backward(step, query_down_, query_norm_, query_up_, dx, dq, x, saved.query);
  else
    query_up_.backward(step, dx, dq, x);
  step.release(dq);
  Tensor more = step.temporary("d norm of keys and values", dx.shape);
  through_backward(step, key_value_down_, key_value_norm_, key_value_up_, more, dkv, x, saved.key_value);
  step.release(dkv);
  add_to(step.compute, dx, more);
  sum.wait(step);
  key_rope_.backward(step, more, dkey_rope, x);
  add_to(step.compute, dx, more);
  step.release(more);
  step.release(dkey_rope);
}

}  // namespace ltrain
