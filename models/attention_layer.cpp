#include "models/attention_layer.h"

#include "kernels/ops/rope.h"

namespace ltrain {

void AttentionLayer::declare(ParameterStore& store, const Groups& groups, const ModelConfig& c,
                             bool sequence_parallel, const std::string& prefix, std::string place,
                             double out_std) {
  const int64_t ranks = groups.tensor.size();
  head_dim_ = c.head_dim;
  dropout_ = c.attn_pdrop;
  place_ = std::move(place);
  all_heads_ = c.num_attention_heads;
  heads_ = all_heads_ / ranks;
  kv_heads_ = c.num_key_value_heads / ranks;
  first_head_ = groups.tensor.rank() * heads_;
  LT_CHECK(heads_ * ranks == all_heads_ && kv_heads_ * ranks == c.num_key_value_heads,
           "{} and {} heads over {} tensor-parallel ranks", all_heads_, c.num_key_value_heads, ranks);
  const int64_t q = all_heads_ * head_dim_, kv = c.num_key_value_heads * head_dim_, h = c.hidden_size;
  const bool sp = sequence_parallel;
  if (c.architecture == "gpt2") {
    const std::string fused = prefix + ".c_attn";  // q, k and v are cut apart: each by its heads
    qkv_.declare(store, groups, sp,
                 {{fused, q, 0, q + 2 * kv}, {fused, kv, q, q + 2 * kv}, {fused, kv, q + kv, q + 2 * kv}}, h,
                 true, c.initializer_range, Cut::column);
    out_.declare(store, groups, sp, {{prefix + ".c_proj", h}}, q, true, out_std, Cut::row);
  } else {
    rope_ = true;
    qkv_.declare(store, groups, sp,
                 {{prefix + ".q_proj", q}, {prefix + ".k_proj", kv}, {prefix + ".v_proj", kv}}, h, false,
                 c.initializer_range, Cut::column);
    out_.declare(store, groups, sp, {{prefix + ".o_proj", h}}, q, false, out_std, Cut::row);
  }
}

AttentionShape AttentionLayer::shape(const MicroBatch& mb) const {
  return {mb.batch,  mb.cut.ranks > 1 ? mb.cut.seq : mb.seq, heads_, kv_heads_, head_dim_, first_head_,
          all_heads_};
}

void AttentionLayer::forward(Step& step, const MicroBatch& mb, Tensor y, Tensor x, Tensor rope_table,
                             Saved& saved) const {
  saved.qkv = step.activation("qkv", {mb.rows(), qkv_.out_features()});
  qkv_.forward(step, saved.qkv, x);
  if (rope_)
    rope(step.compute, saved.qkv, rope_table, step.whole_rows(mb), heads_ + kv_heads_, head_dim_, false);
  const Dropout drop = step.dropout(dropout_, place_ + ".probabilities", mb);
  if (step.groups.context.many()) {
    context_attention_forward(step, mb, shape(mb), drop, saved);
  } else {
    saved.out = step.activation("attention", {mb.rows(), heads_ * head_dim_});
    saved.lse = step.statistic("lse", {mb.batch, heads_, mb.seq});
    attention_forward(step.compute, saved.out, saved.lse, saved.qkv, shape(mb), drop, mb.documents);
  }
  out_.forward(step, y, saved.out);
  if (!step.training)
    for (Tensor* t : {&saved.qkv, &saved.out, &saved.lse, &saved.exchanged_out}) step.release(*t);
}

void AttentionLayer::backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor dy, Tensor x,
                              Tensor rope_table, Saved& saved) const {
  Tensor dout = step.temporary("d attention", saved.out.shape);
  out_.backward(step, dout, dy, saved.out);
  Tensor dqkv = step.temporary("d qkv", {mb.rows(), qkv_.out_features()});
  const Dropout drop = step.dropout(dropout_, place_ + ".probabilities", mb);
  if (step.groups.context.many()) {
    context_attention_backward(step, mb, shape(mb), drop, dqkv, dout, saved);
  } else {
    attention_backward(step.compute, dqkv, dout, saved.qkv, saved.out, saved.lse, shape(mb), drop,
                       mb.documents);
  }
  for (Tensor* t : {&dout, &saved.qkv, &saved.out, &saved.lse, &saved.exchanged_out}) step.release(*t);
  if (rope_) rope(step.compute, dqkv, rope_table, step.whole_rows(mb), heads_ + kv_heads_, head_dim_, true);
  qkv_.backward(step, dx, dqkv, x);
  step.release(dqkv);
}

}  // namespace ltrain
