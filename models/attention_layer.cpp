#include "models/attention_layer.h"

#include "kernels/ops/rope.h"

namespace ltrain {

void AttentionLayer::declare(ParameterStore& store, const ModelConfig& c, const std::string& prefix,
                             std::string place, double out_std) {
  heads_ = c.num_attention_heads;
  kv_heads_ = c.num_key_value_heads;
  head_dim_ = c.head_dim;
  dropout_ = c.attn_pdrop;
  place_ = std::move(place);
  const int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_;
  if (c.architecture == "gpt2") {
    qkv_.declare(store, {prefix + ".c_attn"}, {q + 2 * kv}, c.hidden_size, true, c.initializer_range);
    out_.declare(store, {prefix + ".c_proj"}, {c.hidden_size}, q, true, out_std);
  } else {
    rope_ = true;
    qkv_.declare(store, {prefix + ".q_proj", prefix + ".k_proj", prefix + ".v_proj"}, {q, kv, kv},
                 c.hidden_size, false, c.initializer_range);
    out_.declare(store, {prefix + ".o_proj"}, {c.hidden_size}, q, false, out_std);
  }
}

AttentionShape AttentionLayer::shape(const MicroBatch& mb) const {
  return {mb.batch, mb.seq, heads_, kv_heads_, head_dim_};
}

void AttentionLayer::forward(Step& step, const MicroBatch& mb, Tensor y, Tensor x, Tensor rope_table,
                             Saved& saved) const {
  saved.qkv = step.activation("qkv", {mb.rows(), qkv_.out_features()});
  qkv_.forward(step, saved.qkv, x);
  if (rope_) rope(step.compute, saved.qkv, rope_table, mb.seq, heads_ + kv_heads_, head_dim_, false);
  saved.out = step.activation("attention", {mb.rows(), heads_ * head_dim_});
  saved.lse = step.statistic("lse", {mb.batch, heads_, mb.seq});
  attention_forward(step.compute, saved.out, saved.lse, saved.qkv, shape(mb),
                    step.dropout(dropout_, place_ + ".probabilities", mb));
  out_.forward(step, y, saved.out);
  if (!step.training)
    for (Tensor* t : {&saved.qkv, &saved.out, &saved.lse}) step.release(*t);
}

void AttentionLayer::backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor dy, Tensor x,
                              Tensor rope_table, Saved& saved) const {
  Tensor dout = step.temporary("d attention", saved.out.shape);
  out_.backward(step, dout, dy, saved.out);
  Tensor dqkv = step.temporary("d qkv", saved.qkv.shape);
  attention_backward(step.compute, dqkv, dout, saved.qkv, saved.out, saved.lse, shape(mb),
                     step.dropout(dropout_, place_ + ".probabilities", mb));
  for (Tensor* t : {&dout, &saved.qkv, &saved.out, &saved.lse}) step.release(*t);
  if (rope_) rope(step.compute, dqkv, rope_table, mb.seq, heads_ + kv_heads_, head_dim_, true);
  qkv_.backward(step, dx, dqkv, x);
  step.release(dqkv);
}

}  // namespace ltrain
