// DoRA (arXiv:2402.09353) of a linear layer: the rows of W + scale B A have trained magnitudes. The trained
// parameter is the change of a magnitude from the norm of W's row: it begins at 0 for any weights, and 16
// bits hold it with the precision of a change.
//
// Norms follow W's sharding. column: a rank has whole rows. row: a rank has columns of each row, so that
// squares are summed over the tensor axis; the factors multiply each rank's summand of the output, and the
// gradient of a magnitude is a sum over the ranks.
#include <algorithm>

#include "kernels/elementwise/magnitude.h"
#include "kernels/elementwise/tensor_ops.h"
#include "models/layers/linear.h"

namespace ltrain {
namespace {

constexpr int64_t kProductElements = int64_t{32} << 20;  // part of scale B A at once

}  // namespace

void Linear::declare_magnitudes(ParameterStore& store, const Groups& groups, bool sequence_parallel,
                                const std::vector<LinearPart>& parts, const std::vector<bool>& adapted) {
  std::vector<ParameterSpec> specs;
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const LinearPart& p = parts[i];
    ParameterSpec change{lora_magnitude_name(p.name + ".weight"), {p.rows}, Init::zeros, 0, false};
    change.adapter = true;
    if (p.all) change.slice = Slice::box({p.all}, {p.first}, {p.rows});
    if (cut_ == LinearSharding::column)
      change = cut_rows(std::move(change), groups, p.copies);
    else if (cut_ == LinearSharding::row || sequence_parallel)
      change.sum = Axis::tensor;
    const int64_t rows = change.shape[0];
    row += rows;
    if (!adapted[i]) continue;
    magnitudes_.blocks.push_back({rows, 1, magnitudes_.rows, 0, row - rows, 0});
    magnitudes_.rows += rows;
    specs.push_back(std::move(change));
  }
  magnitudes_.parts = static_cast<int>(specs.size());
  magnitudes_.first = store.add(std::move(specs));
}

Tensor Linear::magnitude_factors(Step& step) const {
  const Tensor w = weight(step);
  const int64_t in = w.shape[1], chunk = std::clamp<int64_t>(kProductElements / in, 1, out_);
  const auto pairs = [&](const char* name) {
    return step.memory.allocate(MemoryKind::temporaries, name, step.stat_type(), {out_, 2});
  };
  Tensor factors = pairs("DoRA factors"), squares = pairs("DoRA squares");
  std::vector<Tensor> b;
  for (const Adapters& l : lora_) {
    b.push_back(lora_b_blocks(step, l));
    scale_by(step.compute, b.back(), l.scale);
  }
  Tensor product = step.temporary("DoRA product", {chunk, in});
  for (int64_t first = 0; first < out_; first += chunk) {
    const int64_t n = std::min(chunk, out_ - first);
    MatmulArgs args;
    for (size_t i = 0; i < lora_.size(); ++i) {
      matmul(step.compute, product.narrow(0, n), b[i].narrow(first, n),
             step.params.value(lora_[i].a, lora_[i].adapters), args);
      args.accumulate = true;
    }
    row_squares(step.compute, squares.narrow(first, n), w.narrow(first, n), product.narrow(0, n));
  }
  step.memory.release(product);
  release_weight(step, w);
  for (Tensor& t : b) step.memory.release(t);
  if (cut_ == LinearSharding::row && step.groups.tensor.size() > 1)
    step.groups.tensor.all_reduce(step.compute, squares);
  const Tensor change = step.params.value(magnitudes_.first, magnitudes_.parts);
  Tensor all = change.flat(0, {magnitudes_.rows});
  const bool some = magnitudes_.rows < out_;
  if (some) {
    all = step.temporary("DoRA changes", {out_});
    fill_zero(step.compute, all);
    copy_rectangles(step.compute, all.flat(0, {out_, 1}), change.flat(0, {magnitudes_.rows, 1}),
                    magnitudes_.blocks);
  }
  ltrain::magnitude_factors(step.compute, factors, squares, all);
  if (some) step.memory.release(all);
  step.memory.release(squares);
  return factors;
}

void Linear::apply_magnitudes(Step& step, Tensor y, Tensor bias) const {
  if (!multiplies_magnitudes(step)) return;
  Tensor factors = magnitude_factors(step);
  scale_columns(step.compute, y, y, factors);
  step.memory.release(factors);
  if (bias.defined()) add_bias(step.compute, y, bias);
}

Tensor Linear::before_magnitudes(Step& step, Tensor dy) const {
  Tensor factors = magnitude_factors(step);
  const Tensor before = step.temporary("d DoRA", dy.shape);
  scale_columns(step.compute, before, dy, factors);
  step.memory.release(factors);
  return before;
}

void Linear::magnitude_backward(Step& step, Tensor dy, Tensor x, const Dropout& drop) const {
  if (!step.params.trains(magnitudes_.first)) return;
  // The output before the magnitudes, again: it is not kept.
  Tensor y = step.temporary("DoRA output", {dy.shape[0], out_});
  MatmulArgs args;
  args.trans_b = true;
  weight_product(step, y, x, args);
  add_lora(step, y, x, drop);
  Tensor factors = magnitude_factors(step);
  const GradBuffer to = step.params.accumulate(magnitudes_.first, magnitudes_.parts);
  const Tensor total = to.tensor.flat(0, {magnitudes_.rows});
  if (magnitudes_.rows == out_) {
    magnitude_gradient(step.compute, total, dy, y, factors, to.accumulate);
  } else {
    const auto temporary = [&](const char* name, int64_t rows) {
      return step.memory.allocate(MemoryKind::temporaries, name, total.dtype, {rows});
    };
    Tensor all = temporary("DoRA gradient, all", out_);
    magnitude_gradient(step.compute, all, dy, y, factors, false);
    std::vector<CopyRectangle> back;
    for (const CopyRectangle& block : magnitudes_.blocks) back.push_back(block.reversed());
    Tensor sum = to.accumulate ? temporary("DoRA gradient", magnitudes_.rows) : total;
    copy_rectangles(step.compute, sum.flat(0, {magnitudes_.rows, 1}), all.flat(0, {out_, 1}), back);
    if (to.accumulate) {
      add_to(step.compute, total, sum);
      step.memory.release(sum);
    }
    step.memory.release(all);
  }
  step.params.grad_ready(magnitudes_.first);
  step.memory.release(factors);
  step.memory.release(y);
}

}  // namespace ltrain
