#include "models/linear.h"

#include "kernels/ops/matmul.h"
#include "kernels/ops/tensor_ops.h"
#include "models/tensor_parallel.h"

namespace ltrain {

void Linear::declare(ParameterStore& store, const Groups& groups, bool sequence_parallel,
                     const std::vector<LinearPart>& parts, int64_t in, bool bias, double std, Cut cut) {
  const int rank = groups.tensor.rank(), ranks = groups.tensor.size();
  std::vector<ParameterSpec> weights, biases;
  cut_ = cut;
  out_ = 0;
  for (const LinearPart& p : parts) {
    ParameterSpec w{p.name + ".weight", {p.rows, in}, Init::normal, std, true};
    ParameterSpec b{p.name + ".bias", {p.rows}, Init::zeros, 0, false};
    if (p.all) {
      w.slice = Slice::box({p.all, in}, {p.first, 0}, {p.rows, in});
      b.slice = Slice::box({p.all}, {p.first}, {p.rows});
    }
    w = cut_over_tensor(std::move(w), cut == Cut::column ? 0 : 1, rank / p.copies, ranks / p.copies);
    if (cut == Cut::column) b = cut_over_tensor(std::move(b), 0, rank / p.copies, ranks / p.copies);
    if (p.copies > 1) {
      w.tensor_dim = b.tensor_dim = 0;  // also when there is one part, which all have
      w.copied = b.copied = true;
    }
    b.sum_tensor = cut == Cut::row && sequence_parallel;
    out_ += w.shape[0];
    weights.push_back(std::move(w));
    biases.push_back(std::move(b));
  }
  parts_ = static_cast<int>(parts.size());
  weight_ = store.add(std::move(weights));
  if (bias) bias_ = store.add(std::move(biases));
}

void Linear::forward(Step& step, Tensor y, Tensor x) const {
  MatmulArgs args;
  args.trans_b = true;
  const Tensor weight = step.params.value(weight_, parts_);
  const Tensor bias = bias_ >= 0 ? step.params.value(bias_, parts_) : Tensor();
  if (cut_ == Cut::column) {
    Tensor whole = gather_rows(step, x, "gathered rows");
    args.bias = bias;
    matmul(step.compute, y, whole, weight, args);
    release_whole(step, whole, x);
    return;
  }
  if (!step.groups.tensor.many()) {
    args.bias = bias;
    matmul(step.compute, y, x, weight, args);
    return;
  }
  const Tensor partial = partial_rows(step, y, x.shape[0], "partial rows");
  matmul(step.compute, partial, x, weight, args);
  sum_rows_start(step, y, partial).wait(step);
  if (bias.defined()) add_bias(step.compute, y, bias);  // once, after the sum
}

void Linear::backward(Step& step, Tensor dx, Tensor dy, Tensor x) const {
  const bool later = step.later != nullptr;
  const Tensor weight = step.params.value(weight_, parts_);
  if (cut_ == Cut::row) {
    Tensor whole = gather_rows(step, dy, "gathered gradient");
    if (dx.defined()) matmul(step.compute, dx, whole, weight);
    bias_backward(step, dy);
    if (later) {
      step.later->add([this, whole, x](Step& s) { weight_backward(s, whole, x); }, {whole, x});
    } else {
      weight_backward(step, whole, x);
    }
    release_whole(step, whole, dy);
    return;
  }
  RowSum sum;
  if (dx.defined()) {
    const Tensor partial = partial_rows(step, dx, dy.shape[0], "partial gradient");
    matmul(step.compute, partial, dy, weight);
    sum = sum_rows_start(step, dx, partial);  // runs while the weight gradient is computed
  }
  bias_backward(step, dy);
  const auto work = [this, dy, x](Step& s) {
    Tensor whole = gather_rows(s, x, "gathered rows");
    weight_backward(s, dy, whole);
    release_whole(s, whole, x);
  };
  if (later) {
    step.later->add(work, {dy, x});
  } else {
    work(step);
  }
  if (dx.defined() && step.groups.tensor.many()) sum.wait(step);
}

void Linear::weight_backward(Step& step, Tensor dy, Tensor x) const {
  MatmulArgs args;
  args.trans_a = true;
  const GradTarget to = step.params.contribute(weight_, parts_);
  args.accumulate = to.accumulate;
  matmul(step.compute, to.tensor, dy, x, args);
  step.params.grad_ready(weight_);
}

void Linear::bias_backward(Step& step, Tensor dy) const {
  if (bias_ < 0) return;
  const GradTarget to = step.params.contribute(bias_, parts_);
  sum_rows(step.compute, to.tensor, dy, to.accumulate);
  step.params.grad_ready(bias_);
}

}  // namespace ltrain
