// Norms of queries and keys before their rotation: of each head, or of the full projection, with columns
// sharded over tensor ranks.
#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/norm/clip_qkv.h"
#include "kernels/norm/norm_cut.h"
#include "models/attention/attention_layer.h"
#include "models/layers/tensor_parallel.h"

namespace ltrain {

void AttentionLayer::declare_norms(ParameterStore& store, const Groups& groups, const ModelConfig& c,
                                   const std::string& prefix) {
  norm_kind_ = c.traits().query_key_norm;
  norm_eps_ = c.norm_eps;
  norm_offset_ = c.traits().norm_scales_by_one_more ? 1 : 0;
  if (norm_kind_ == QueryKeyNorm::none) return;
  const Group& t = groups.tensor;
  LT_CHECK(groups.one_d(),
           "norms of queries and keys: expected tensor parallelism in 1D, got {} ranks in another mode",
           groups.inner().size());
  norm_cut_ = norm_kind_ == QueryKeyNorm::projection && t.size() > 1;
  const auto add = [&](const std::string& name, int64_t heads, int copies) {
    const int64_t width = norm_kind_ == QueryKeyNorm::head ? head_dim_ : heads * head_dim_;
    ParameterSpec spec{.name = prefix + "." + name + ".weight",
                       .shape = {width},
                       .init = norm_offset_ > 0 ? Init::zeros : Init::ones,
                       .std = 0,
                       .decay = false};
    if (!norm_cut_) {
      spec.sum = Axis::tensor;  // each rank normalizes its own heads
      return store.add({spec});
    }
    spec = cut_over(Axis::tensor, std::move(spec), 0, t.rank() / copies, t.size() / copies);
    spec.place[Axis::tensor] = Placement::S(0);
    spec.copied = copies > 1;
    return store.add({spec});
  };
  query_norm_ = add(c.names().query_norm, c.num_attention_heads, 1);
  key_norm_ = add(c.names().key_norm, c.num_key_value_heads, copies_);
}

HeadNorm AttentionLayer::queries() const {
  return norm_kind_ == QueryKeyNorm::head ? HeadNorm{.first = 0,
                                                     .heads = heads_,
                                                     .width = head_dim_,
                                                     .eps = norm_eps_,
                                                     .weight_offset = norm_offset_}
                                          : HeadNorm{.first = 0,
                                                     .heads = 1,
                                                     .width = heads_ * head_dim_,
                                                     .eps = norm_eps_,
                                                     .weight_offset = norm_offset_};
}
HeadNorm AttentionLayer::keys() const {
  const int64_t first = heads_ * head_dim_;
  return norm_kind_ == QueryKeyNorm::head ? HeadNorm{.first = first,
                                                     .heads = kv_heads_,
                                                     .width = head_dim_,
                                                     .eps = norm_eps_,
                                                     .weight_offset = norm_offset_}
                                          : HeadNorm{.first = first,
                                                     .heads = 1,
                                                     .width = kv_heads_ * head_dim_,
                                                     .eps = norm_eps_,
                                                     .weight_offset = norm_offset_};
}

void AttentionLayer::norm(Step& step, Tensor qkv, Saved& saved) const {
  if (norm_kind_ == QueryKeyNorm::none) return;
  const auto one = [&](const HeadNorm& part, int weight, Tensor& x, Tensor& rstd) {
    if (step.keeps() || norm_cut_) {
      x = step.activation("before the norm of heads", {qkv.shape[0], part.heads * part.width});
      rstd = step.statistic("rstd of heads", {qkv.shape[0], part.heads});
    }
    if (!norm_cut_) return head_norm_forward(step.compute, qkv, x, rstd, step.params.value(weight), part);
    cut_norm(step, qkv, part, weight, x, rstd);
    if (step.keeps()) return;
    step.release(x);
    step.release(rstd);
  };
  one(queries(), query_norm_, saved.query, saved.query_rstd);
  one(keys(), key_norm_, saved.key, saved.key_rstd);
}

/// Norm with columns sharded over tensor ranks. If several ranks hold one key-value head, each counts its
/// copy: the mean of the squares is the same.
void AttentionLayer::cut_norm(Step& step, Tensor qkv, const HeadNorm& part, int weight, Tensor x,
                              Tensor rstd) const {
  const int64_t rows = x.shape[0];
  copy_rectangles(step.compute, x, qkv, {{rows, part.width, 0, part.first, 0, 0}});
  Tensor moments = step.memory.allocate(MemoryKind::temporaries, "moments of heads", step.stat_type(),
                                        {rows, norm_moment_count(NormKind::rms)});
  norm_moments(step.compute, moments, x, NormKind::rms);
  Gathered all = gather_start(step, step.groups.tensor, moments, "moments of all heads");
  Tensor y = step.temporary("normed heads", x.shape);
  NormApply a;
  a.kind = NormKind::rms;
  a.eps = part.eps;
  a.x = x;
  a.moments = all.wait(step);
  a.weight = step.params.value(weight);
  a.y = y;
  a.rstd = rstd;
  a.weight_offset = norm_offset_;
  norm_apply(step.compute, a);
  copy_rectangles(step.compute, qkv, y, {{rows, part.width, 0, 0, 0, part.first}});
  release_whole(step, all.whole, moments);
  step.release(moments);
  step.release(y);
}

/// Backward of cut_norm. For a key-value head with copies, dots sum each copy's part of the gradient, and
/// each copy subtracts its share of the norm's terms: all_cols counts the copies.
void AttentionLayer::cut_norm_backward(Step& step, Tensor dqkv, const HeadNorm& part, int weight, Tensor x,
                                       Tensor rstd) const {
  const Group& g = step.groups.tensor;
  const int64_t rows = x.shape[0];
  Tensor dy = step.temporary("d normed heads", x.shape), dx = step.temporary("d heads", x.shape);
  copy_rectangles(step.compute, dy, dqkv, {{rows, part.width, 0, part.first, 0, 0}});
  const GradBuffer to = step.params.accumulate(weight);
  NormCutBackward b;
  b.kind = NormKind::rms;
  b.dy = dy;
  b.x = x;
  b.weight = step.params.value(weight);
  b.rstd = rstd;
  b.dx = dx;
  b.dweight = to.tensor;
  b.accumulate = to.accumulate;
  b.first = true;
  b.weight_offset = norm_offset_;
  b.dots = step.memory.allocate(MemoryKind::temporaries, "sums of heads", step.stat_type(),
                                {rows, norm_moment_count(NormKind::rms)});
  norm_cut_dots(step.compute, b);
  g.all_reduce(step.compute, b.dots);
  b.all_cols = part.width * g.size();
  norm_cut_backward(step.compute, b);
  step.params.grad_ready(weight);
  copy_rectangles(step.compute, dqkv, dx, {{rows, part.width, 0, 0, 0, part.first}});
  step.release(b.dots);
  step.release(dy);
  step.release(dx);
}

void AttentionLayer::clip_heads(Step& step, Tensor dqkv, const Saved& saved) const {
  if (clip_ == 0) return;
  clip_heads_backward(step.compute, dqkv, saved.query, saved.query_rstd, step.params.value(query_norm_),
                      queries(), clip_);
  clip_heads_backward(step.compute, dqkv, saved.key, saved.key_rstd, step.params.value(key_norm_), keys(),
                      clip_);
}

void AttentionLayer::norm_backward(Step& step, Tensor dqkv, Saved& saved) const {
  if (norm_kind_ == QueryKeyNorm::none) return;
  const auto one = [&](const HeadNorm& part, int weight, Tensor& x, Tensor& rstd) {
    if (norm_cut_) {
      cut_norm_backward(step, dqkv, part, weight, x, rstd);
    } else {
      const GradBuffer to = step.params.accumulate(weight);
      head_norm_backward(step.compute, dqkv, to.tensor, x, rstd, step.params.value(weight), part,
                         to.accumulate);
      step.params.grad_ready(weight);
    }
    step.release(x);
    step.release(rstd);
  };
  one(queries(), query_norm_, saved.query, saved.query_rstd);
  one(keys(), key_norm_, saved.key, saved.key_rstd);
}

}  // namespace ltrain
