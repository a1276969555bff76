#include "models/layers/linear.h"

#include <memory>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/nf4.h"
#include "kernels/tensor/micro_batch_overlap.h"

namespace ltrain {

void Linear::declare(ParameterStore& store, const Groups& groups, bool sequence_parallel,
                     const std::vector<LinearPart>& parts, int64_t in, bool bias, double std,
                     LinearSharding cut, const LoraConfig& lora) {
  std::vector<ParameterSpec> weights, biases;
  cut_ = cut;
  out_ = 0;
  LT_CHECK(!bias || cut != LinearSharding::whole,
           "{}: expected no bias in an unsharded linear layer, got one", parts.front().name);
  for (const LinearPart& p : parts) {
    ParameterSpec w{
        .name = p.name + ".weight", .shape = {p.rows, in}, .init = Init::normal, .std = std, .decay = true};
    ParameterSpec b{
        .name = p.name + ".bias", .shape = {p.rows}, .init = Init::zeros, .std = 0, .decay = false};
    w.nf4 = lora.on() && lora.base == LoraBase::nf4;
    if (p.all) {
      w.slice = Slice::box({p.all, in}, {p.first, 0}, {p.rows, in});
      w.matrix = {p.rows, in};
      b.slice = Slice::box({p.all}, {p.first}, {p.rows});
    }
    weights.push_back(cut_weight(std::move(w), groups, p.copies, sequence_parallel));
    biases.push_back(cut_bias(std::move(b), groups, p.copies, sequence_parallel));
    out_ += biases.back().shape[0];
  }
  parts_ = static_cast<int>(parts.size());
  weight_ = store.add(std::move(weights));
  if (bias) bias_ = store.add(std::move(biases));
  if (lora.on()) declare_adapters(store, groups, sequence_parallel, parts, in, lora);
}

ParameterSpec Linear::cut_rows(ParameterSpec spec, const Groups& g, int copies) {
  spec = cut_over(Axis::tensor, std::move(spec), 0, g.tensor.rank() / copies, g.tensor.size() / copies);
  if (copies > 1) {
    spec.place[Axis::tensor] = Placement::S(0);  // also for a single part, which all ranks have
    spec.copied = true;
  }
  return spec;
}

ParameterSpec Linear::cut_weight(ParameterSpec w, const Groups& g, int copies, bool sequence_parallel) const {
  if (cut_ == LinearSharding::whole) {
    LT_CHECK(g.one_d(),
             "{}: expected tensor parallelism in 1D for an unsharded weight, got {} ranks in another mode",
             w.name, g.inner().size());
    if (sequence_parallel) w.sum = Axis::tensor;  // each rank has its own rows
    return w;
  }
  const auto cut = [&](Axis a, int dim) {
    w = cut_over(a, std::move(w), dim, g.over(a).rank(), g.over(a).size());
  };
  switch (g.mesh.tensor_mode) {
    case TensorMode::one_d:
      if (cut_ == LinearSharding::column) return cut_rows(std::move(w), g, copies);
      LT_CHECK(copies == 1, "{}: expected one copy of a matrix with sharded columns, got {}", w.name, copies);
      w = cut_over(Axis::tensor, std::move(w), 1, g.tensor.rank(), g.tensor.size());
      break;
    case TensorMode::two_d:
      cut(Axis::column, 0);
      cut(Axis::row, 1);
      w.sum = Axis::depth;
      break;
    case TensorMode::three_d:
      cut(cut_ == LinearSharding::column ? Axis::row : Axis::column, 0);
      cut(Axis::depth, 0);
      cut(cut_ == LinearSharding::column ? Axis::column : Axis::row, 1);
      break;
  }
  return w;
}

ParameterSpec Linear::cut_bias(ParameterSpec b, const Groups& g, int copies, bool sequence_parallel) const {
  if (g.one_d()) {
    if (cut_ == LinearSharding::column) return cut_rows(std::move(b), g, copies);
    if (cut_ == LinearSharding::row && sequence_parallel) b.sum = Axis::tensor;
    return b;
  }
  // Sharded like the columns of y; ranks of the other two axes have other rows.
  const bool turns = g.mesh.tensor_mode == TensorMode::three_d && cut_ == LinearSharding::column;
  const Axis columns = turns ? Axis::row : Axis::column;
  b.sum = Axis::depth | (turns ? Axis::column : Axis::row);
  return cut_over(columns, std::move(b), 0, g.over(columns).rank(), g.over(columns).size());
}

Tensor Linear::weight(Step& step) const {
  if (!step.params.is_nf4(weight_)) return step.params.value(weight_, parts_);
  const Nf4Matrix coded = step.params.nf4(weight_, parts_);
  const Tensor w =
      step.temporary("dequantised weights", {coded.codes.shape[0], coded.codes.shape[1] * kNf4Pair});
  nf4_dequantize(step.compute, w, coded);
  return w;
}

void Linear::release_weight(Step& step, Tensor w) const {
  if (step.params.is_nf4(weight_)) step.release(w);
}

void Linear::weight_product(Step& step, Tensor out, Tensor a, const MatmulArgs& args) const {
  const Tensor w = weight(step);
  product(step, out, a, w, args);
  release_weight(step, w);
}

void Linear::forward(Step& step, Tensor y, Tensor x) const {
  switch (step.groups.mesh.tensor_mode) {
    case TensorMode::one_d:
      return line_forward(step, y, x);
    case TensorMode::two_d:
      return forward_2d(step, y, x);
    case TensorMode::three_d:
      return forward_3d(step, y, x);
  }
}

Gathered Linear::gather_ahead(Step& step, Tensor x) const {
  if (cut_ != LinearSharding::column || step.deferred) return {};
  return step.cuts_rows() ? gather_rows_start(step, x, "gathered rows") : Gathered();
}

GradBuffer Linear::bias_sums(Step& step) const {
  const bool sums = step.groups.one_d() && cut_ == LinearSharding::column;
  if (!sums || bias_ < 0 || !step.params.trains(bias_)) return {};
  return step.params.accumulate(bias_, parts_);
}

void Linear::backward(Step& step, Tensor dx, Tensor dy, Tensor x, Gathered ahead, bool bias_summed) const {
  const Tensor bias_dy = bias_summed ? Tensor() : dy;
  switch (step.groups.mesh.tensor_mode) {
    case TensorMode::one_d:
      if (magnitudes_.on()) {
        Tensor before = before_magnitudes(step, dy);
        line_backward(step, dx, before, bias_dy, x, ahead);
        return step.release(before);
      }
      return line_backward(step, dx, dy, bias_dy, x, ahead);
    case TensorMode::two_d:
      return backward_2d(step, dx, dy, x);
    case TensorMode::three_d:
      return backward_3d(step, dx, dy, x);
  }
}

void Linear::line_forward(Step& step, Tensor y, Tensor x) const {
  MatmulArgs args;
  args.trans_b = true;
  const Tensor bias = this->bias(step);
  const Tensor in_product =
      multiplies_magnitudes(step) ? Tensor() : bias;  // magnitudes multiply before the bias
  if (cut_ == LinearSharding::whole) {
    weight_product(step, y, x, args);
    add_lora(step, y, x);
    return apply_magnitudes(step, y, {});
  }
  if (cut_ == LinearSharding::column) {
    args.bias = in_product;
    if (step.cuts_rows() && runs_in_parts(step)) return ring_product(step, y, x, weight(step), args);
    Tensor whole = gather_rows(step, x, "gathered rows");
    weight_product(step, y, whole, args);
    add_lora(step, y, whole);
    release_whole(step, whole, x);
    apply_magnitudes(step, y, bias);
    return;
  }
  if (step.groups.tensor.size() == 1) {
    args.bias = in_product;
    weight_product(step, y, x, args);
    add_lora(step, y, x);
    return apply_magnitudes(step, y, bias);
  }
  if (runs_in_parts(step)) {
    summed_product(step, y, x, weight(step), args);
  } else {
    const Tensor partial = partial_rows(step, y, x.shape[0], "partial rows");
    weight_product(step, partial, x, args);
    add_lora(step, partial, x);
    apply_magnitudes(step, partial, {});
    sum_rows_start(step, y, partial).wait(step);
  }
  if (bias.defined()) add_bias(step.compute, y, bias);  // once, after the sum
}

void Linear::line_backward(Step& step, Tensor dx, Tensor dy, Tensor bias_dy, Tensor x, Gathered rows) const {
  const bool later = step.deferred != nullptr;
  const GradientRandom random = gradient_random(step);
  if (cut_ == LinearSharding::whole) {
    if (dx.defined() && !later) expect_both(step, dy);
    if (dx.defined()) weight_product(step, dx, dy);
    if (dx.defined()) add_lora_input_gradient(step, dx, dy);
    if (later)
      step.deferred->add([this, dy, x, random](Step& s) { weight_backward(s, dy, x, random); }, {dy, x});
    else
      weight_backward(step, dy, x, random);
    return;
  }
  if (cut_ == LinearSharding::row) {
    Tensor whole;
    if (dx.defined() && step.cuts_rows() && runs_in_parts(step)) {
      whole = step.temporary("gathered gradient", {x.shape[0], dy.shape[1]});
      ring_product(step, dx, dy, weight(step), {}, whole);
    } else {
      whole = gather_rows(step, dy, "gathered gradient");
      if (dx.defined() && !later && !(step.cuts_rows() && step.hiding)) expect_both(step, whole);
      if (dx.defined()) weight_product(step, dx, whole);
      if (dx.defined()) add_lora_input_gradient(step, dx, whole);
    }
    bias_backward(step, bias_dy);
    // If rows are sharded, it waits for the next sum over the tensor axis and overlaps with it.
    if (WeightGradients* until = later ? step.deferred : step.cuts_rows() ? step.hiding : nullptr) {
      until->add([this, whole, x, random](Step& s) { weight_backward(s, whole, x, random); }, {whole, x});
    } else {
      weight_backward(step, whole, x, random);
    }
    release_whole(step, whole, dy);
    return;
  }
  // The gather for the weight gradient overlaps with the matmul before it, whose sum overlaps with the weight
  // gradient: in this order on their common stream.
  if (!later && !rows.whole.defined()) rows = gather_rows_start(step, x, "gathered rows");
  RowSum sum;
  // A deferred gradient overlaps with nothing here.
  const bool in_parts = later && !step.cuts_rows() && runs_in_parts(step);
  if (dx.defined() && in_parts) {
    summed_product(step, dx, dy, weight(step), {});
  } else if (dx.defined()) {
    const Tensor partial = partial_rows(step, dx, dy.shape[0], "partial gradient");
    if (!later) expect_both(step, dy);
    weight_product(step, partial, dy);
    add_lora_input_gradient(step, partial, dy);
    sum = sum_rows_start(step, dx, partial);  // overlaps with the weight gradient
    // The other micro-batch may first start its own collective, which that gradient also overlaps with.
    if (step.compute.overlap && step.groups.tensor.size() > 1) step.compute.overlap->pass();
  }
  bias_backward(step, bias_dy);
  if (later) {
    const auto later_rows = std::make_shared<Gathered>();
    const auto work = [this, dy, x, later_rows, random](Step& s) {
      later_rows->done.wait_hidden(s.compute);
      weight_backward(s, dy, later_rows->whole, random);
      release_whole(s, later_rows->whole, x);
    };
    step.deferred->add(work, {dy, x},
                       [x, later_rows](Step& s) { *later_rows = gather_rows_start(s, x, "gathered rows"); });
  } else {
    rows.done.wait_hidden(step.compute);
    weight_backward(step, dy, rows.whole, random);
    release_whole(step, rows.whole, x);
    if (step.hiding && step.hiding->due) step.hiding->run(step);
  }
  if (!dx.defined() || in_parts || step.groups.tensor.size() == 1) return;
  sum.done.wait_hidden(step.compute);
  step.release(sum.partial);
}

void Linear::weight_backward(Step& step, Tensor dy, Tensor x, const GradientRandom& random) const {
  lora_weight_backward(step, dy, x, random.lora);
  if (magnitudes_.on()) magnitude_backward(step, dy, x, random.lora);
  if (!step.params.trains(weight_)) return;
  MatmulArgs args;
  args.trans_a = true;
  const GradBuffer to = step.params.accumulate(weight_, parts_);
  args.accumulate = to.accumulate;
  if (prunes_gradient(step)) {
    Tensor pruned = pruned_gradient(step, dy, random.pruned);
    args.sparse_a = step.params.skips_zeros(weight_, parts_);
    product(step, to.tensor, pruned, x, args);
    step.release(pruned);
  } else {
    product(step, to.tensor, dy, x, args);
  }
  step.params.grad_ready(weight_);
}

void Linear::bias_backward(Step& step, Tensor dy) const {
  if (bias_ < 0 || !step.params.trains(bias_)) return;
  if (dy.defined()) {
    const GradBuffer to = step.params.accumulate(bias_, parts_);
    sum_rows(step.compute, to.tensor, dy, to.accumulate);
  }
  step.params.grad_ready(bias_);
}

}  // namespace ltrain
