// LoRA of a linear layer. The factors of its parts are two matrices: A (parts rank, in), and B as blocks of a
// matrix (out, parts rank) that is zero elsewhere. All parts are multiplied at once, for the price of `parts`
// times the few FLOPs of a factor.
//
// Sharding follows W's. column: B has W's rows, and A is whole on each tensor rank, whose gradient is a sum
// over them. row: A has W's columns, so that x A^T and with it the layer's output are summands, which one
// collective sums; B is whole, and its gradient is a sum.
#include "kernels/elementwise/tensor_ops.h"
#include "models/layers/linear.h"

namespace ltrain {

void Linear::declare_adapters(ParameterStore& store, const Groups& groups, bool sequence_parallel,
                              const std::vector<LinearPart>& parts, int64_t in, const LoraConfig& lora) {
  std::vector<ParameterSpec> a, b;
  int64_t row = 0, from = 0;
  for (const LinearPart& p : parts) {
    const std::string weight = p.name + ".weight", a_name = lora_a_name(weight);
    ParameterSpec part{lora_b_name(weight), {p.rows, lora.rank}, Init::zeros, 0, true};
    part.adapter = true;
    if (p.all) part.slice = Slice::box({p.all, lora.rank}, {p.first, 0}, {p.rows, lora.rank});
    if (cut_ == LinearSharding::column)
      part = cut_rows(std::move(part), groups, p.copies);
    else if (cut_ == LinearSharding::row || sequence_parallel)
      part.sum = Axis::tensor;
    const int64_t rows = part.shape[0];
    row += rows;
    if (!lora.adapts(weight)) continue;
    LT_CHECK(groups.one_d(), "{}: expected tensor parallelism in 1D for LoRA, got {} ranks in another mode",
             weight, groups.inner().size());
    if (a.empty() || a.back().name != a_name) {
      if (store.find(a_name) >= 0)
        fail(ExitCode::usage,
             "lora.target_modules: {} is one matrix of which layers with parallel.tensor = {} hold parts "
             "apart, since "
             "it exceeds model.num_key_value_heads, and its adapter is one; leave it out, or lower "
             "parallel.tensor",
             module_of(weight), groups.tensor.size());
      // the variance of PEFT's uniform distribution up to 1 / sqrt(in)
      ParameterSpec factor{
          a_name, {lora.rank, in}, Init::normal, 1 / std::sqrt(3.0 * static_cast<double>(in)), true};
      factor.adapter = true;
      if (cut_ == LinearSharding::row)
        factor = cut_over(Axis::tensor, std::move(factor), 1, groups.tensor.rank(), groups.tensor.size());
      else if (cut_ == LinearSharding::column || sequence_parallel)
        factor.sum = Axis::tensor;
      a.push_back(std::move(factor));
    }
    lora_.blocks.push_back(
        {rows, lora.rank, from, 0, row - rows, (static_cast<int64_t>(a.size()) - 1) * lora.rank});
    from += rows;
    b.push_back(std::move(part));
  }
  if (a.empty()) return;
  lora_.rank = lora.rank;
  lora_.scale = lora.scale();
  lora_.adapters = static_cast<int>(a.size());
  lora_.rows = from;
  lora_.a = store.add(std::move(a));
  lora_.b = store.add(std::move(b));
}

Tensor Linear::lora_b_blocks(Step& step) const {
  const Tensor b = step.params.value(lora_.b, static_cast<int>(lora_.blocks.size()));
  Tensor blocks = step.temporary("LoRA B", {out_, lora_.adapters * lora_.rank});
  if (lora_.blocks.size() > 1 || lora_.rows < out_) fill_zero(step.compute, blocks);
  copy_rectangles(step.compute, blocks, b, lora_.blocks);
  return blocks;
}

/// scale a b^T or scale a b, rounded once to the dtype of the step.
static Tensor scaled_product(Step& step, Tensor a, Tensor b, bool trans_b, double scale) {
  const Shape shape{a.shape[0], trans_b ? b.shape[0] : b.shape[1]};
  Tensor wide = step.memory.allocate(MemoryKind::temporaries, "LoRA, wide", step.stat_type(), shape);
  MatmulArgs args;
  args.trans_b = trans_b;
  matmul(step.compute, wide, a, b, args);
  scale_by(step.compute, wide, scale);
  if (wide.dtype == step.dtype) return wide;
  const Tensor out = step.temporary("LoRA", shape);
  cast(step.compute, out, wide);
  step.memory.release(wide);
  return out;
}

Tensor Linear::lora_inner(Step& step, Tensor x) const {
  return scaled_product(step, x, step.params.value(lora_.a, lora_.adapters), true, lora_.scale);
}

Tensor Linear::lora_inner_gradient(Step& step, Tensor dy) const {
  Tensor b = lora_b_blocks(step);
  const Tensor dz = scaled_product(step, dy, b, false, lora_.scale);
  step.memory.release(b);
  return dz;
}

void Linear::add_lora(Step& step, Tensor y, Tensor x) const {
  if (!lora_.on()) return;
  Tensor z = lora_inner(step, x), b = lora_b_blocks(step);
  MatmulArgs args;
  args.trans_b = true;
  args.accumulate = true;
  matmul(step.compute, y, z, b, args);
  step.memory.release(b);
  step.memory.release(z);
}

void Linear::add_lora_input_gradient(Step& step, Tensor dx, Tensor dy) const {
  if (!lora_.on()) return;
  Tensor dz = lora_inner_gradient(step, dy);
  MatmulArgs args;
  args.accumulate = true;
  matmul(step.compute, dx, dz, step.params.value(lora_.a, lora_.adapters), args);
  step.memory.release(dz);
}

void Linear::lora_weight_backward(Step& step, Tensor dy, Tensor x) const {
  if (!lora_.on()) return;
  MatmulArgs args;
  args.trans_a = true;
  if (step.params.trains(lora_.a)) {
    Tensor dz = lora_inner_gradient(step, dy);
    const GradBuffer to = step.params.accumulate(lora_.a, lora_.adapters);
    args.accumulate = to.accumulate;
    matmul(step.compute, to.tensor, dz, x, args);
    step.params.grad_ready(lora_.a);
    step.memory.release(dz);
  }
  if (!step.params.trains(lora_.b)) return;
  Tensor z = lora_inner(step, x);
  const GradBuffer to = step.params.accumulate(lora_.b, static_cast<int>(lora_.blocks.size()));
  if (lora_.blocks.size() == 1 && lora_.rows == out_) {
    args.accumulate = to.accumulate;
    matmul(step.compute, to.tensor, dy, z, args);
  } else {
    args.accumulate = false;
    const auto temporary = [&](const char* name, Shape shape) {
      return step.memory.allocate(MemoryKind::temporaries, name, to.tensor.dtype, shape);
    };
    Tensor blocks = temporary("LoRA dB, blocks", {out_, lora_.adapters * lora_.rank});
    matmul(step.compute, blocks, dy, z, args);
    std::vector<CopyRectangle> back;
    for (const CopyRectangle& block : lora_.blocks) back.push_back(block.reversed());
    Tensor sum = to.accumulate ? temporary("LoRA dB", to.tensor.shape) : to.tensor;
    copy_rectangles(step.compute, sum, blocks, back);
    if (to.accumulate) {
      add_to(step.compute, to.tensor, sum);
      step.memory.release(sum);
    }
    step.memory.release(blocks);
  }
  step.params.grad_ready(lora_.b);
  step.memory.release(z);
}

}  // namespace ltrain
