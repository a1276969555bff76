#include "models/layers/norm_layer.h"

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/norm/norm_cut.h"
#include "kernels/norm/norm_fp8.h"
#include "models/layers/fp8.h"
#include "models/layers/tensor_parallel.h"

namespace ltrain {

void NormLayer::declare(ParameterStore& store, const Groups& groups, const std::string& name,
                        const ModelTraits& traits, int64_t cols, double eps, bool sequence_parallel) {
  kind_ = traits.norm;
  offset_ = traits.norm_scales_by_one_more ? 1 : 0;
  eps_ = eps;
  ParameterSpec weight{.name = name + ".weight",
                       .shape = {cols},
                       .init = offset_ > 0 ? Init::zeros : Init::ones,
                       .std = 0,
                       .decay = false};
  ParameterSpec bias{.name = name + ".bias", .shape = {cols}, .init = Init::zeros, .std = 0, .decay = false};
  for (ParameterSpec* p : {&weight, &bias}) {
    if (sequence_parallel) p->sum = Axis::tensor;  // each rank normalizes its own rows
    if (groups.one_d()) continue;
    *p = cut_over(Axis::column, std::move(*p), 0, groups.column.rank(), groups.column.size());
    p->sum = Axis::depth | Axis::row;
  }
  weight_ = store.add({weight});
  if (kind_ == NormKind::layer) bias_ = store.add({bias});
}

void NormLayer::recompute(Step& step, Saved& saved) const {
  if (!declared()) return;
  step.release(saved.rstd);
  step.release(saved.mean);
  Residual r;
  r.x = saved.x;
  r.kept = true;
  forward(step, r, saved);
}

void NormLayer::forward(Step& step, Residual& r, Saved& saved, bool keep_sum) const {
  const Shape shape = r.x.shape;
  saved.x = r.x;
  if (r.delta.defined())
    saved.x =
        step.memory.allocate(step.keeps() || keep_sum ? MemoryKind::activations : MemoryKind::temporaries,
                             "residual", step.dtype, shape);
  // Ranks with sharded rows gather them unquantized.
  const bool rounds = step.fp8 && declared() && !step.cuts_rows() && step.fp8->knows_steps(step, slot_);
  if (declared()) {
    saved.y = rounds ? step.fp8->input(step, "norm", shape) : step.activation("norm", shape);
    saved.rstd = step.statistic("rstd", {shape[0]});
    if (kind_ == NormKind::layer) saved.mean = step.statistic("mean", {shape[0]});
  }
  if (!declared()) {
    if (r.delta.defined()) residual_add(step.compute, saved.x, r.x, r.delta, r.dropout);
  } else if (step.groups.column.size() > 1) {
    cut_forward(step, r, saved);
  } else {
    NormForward a;
    a.kind = kind_;
    a.eps = eps_;
    a.weight_offset = offset_;
    a.x = r.x;
    a.weight = step.params.value(weight_);
    if (bias_ >= 0) a.bias = step.params.value(bias_);
    if (r.delta.defined()) {
      a.delta = r.delta;
      a.dropout = r.dropout;
      a.sum = saved.x;
    }
    a.rstd = saved.rstd;
    a.mean = saved.mean;
    if (rounds) {
      norm_forward_fp8(step.compute, a, step.fp8->output(step, slot_, saved.y));
    } else {
      a.y = saved.y;
      norm_forward(step.compute, a);
    }
  }
  if (r.delta.defined()) {
    step.release(r.delta);
    if (!r.kept) step.release(r.x);
    r.kept = false;
  }
  r.x = saved.x;
  r.kept = r.kept || step.keeps() || keep_sum;
  if (!step.keeps()) {
    step.release(saved.rstd);
    step.release(saved.mean);
  }
}

void NormLayer::cut_forward(Step& step, const Residual& r, Saved& saved) const {
  if (r.delta.defined()) residual_add(step.compute, saved.x, r.x, r.delta, r.dropout);
  const Shape shape{saved.x.shape[0], norm_moment_count(kind_)};
  Tensor moments = step.memory.allocate(MemoryKind::temporaries, "norm moments", step.stat_type(), shape);
  norm_moments(step.compute, moments, saved.x, kind_);
  Gathered all = gather_start(step, step.groups.column, moments, "norm moments of all");
  NormApply a;
  a.kind = kind_;
  a.eps = eps_;
  a.weight_offset = offset_;
  a.x = saved.x;
  a.moments = all.wait(step);
  a.weight = step.params.value(weight_);
  if (bias_ >= 0) a.bias = step.params.value(bias_);
  a.y = saved.y;
  a.mean = saved.mean;
  a.rstd = saved.rstd;
  norm_apply(step.compute, a);
  release_whole(step, all.whole, moments);
  step.release(moments);
}

void NormLayer::cut_backward(Step& step, const NormBackward& whole) const {
  const Group& g = step.groups.column;
  const Shape shape{whole.dy.shape[0], norm_moment_count(kind_)};
  NormCutBackward b;
  static_cast<NormBackward&>(b) = whole;
  b.dots = step.memory.allocate(MemoryKind::temporaries, "norm sums", step.stat_type(), shape);
  norm_cut_dots(step.compute, b);
  g.all_reduce(step.compute, b.dots);
  b.all_cols = b.dy.shape[1] * g.size();
  norm_cut_backward(step.compute, b);
  step.release(b.dots);
}

void NormLayer::backward(Step& step, Tensor dx, Tensor dy, Saved& saved, bool first) const {
  if (!declared()) {
    LT_CHECK(!first,
             "expected an initialized gradient of the residual stream for an addition without a norm, got "
             "the first contribution to it");
    add_to(step.compute, dx, dy);
    return step.release(saved.x);
  }
  NormBackward b;
  b.kind = kind_;
  b.weight_offset = offset_;
  b.dy = dy;
  b.x = saved.x;
  b.weight = step.params.value(weight_);
  b.mean = saved.mean;
  b.rstd = saved.rstd;
  b.dx = dx;
  const GradBuffer weight = step.params.accumulate(weight_);
  b.dweight = weight.tensor;
  b.accumulate = weight.accumulate;
  if (bias_ >= 0) {
    const GradBuffer bias = step.params.accumulate(bias_);
    b.dbias = bias.tensor;
    if (bias.accumulate != weight.accumulate) {  // one of them is frozen: it follows the other
      fill_zero(step.compute, bias.accumulate ? weight.tensor : bias.tensor);
      b.accumulate = true;
    }
  }
  b.first = first;
  if (step.groups.column.size() > 1)
    cut_backward(step, b);
  else
    norm_backward(step.compute, b);
  step.params.grad_ready(weight_);
  if (bias_ >= 0) step.params.grad_ready(bias_);
  step.release(saved.rstd);
  step.release(saved.mean);
  step.release(saved.x);
}

}  // namespace ltrain
