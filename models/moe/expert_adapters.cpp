#include "models/moe/expert_adapters.h"

#include "kernels/elementwise/tensor_ops.h"
#include "models/layers/model_config.h"
#include "models/moe/moe_layer.h"

namespace ltrain {

NamedExperts named_experts(const ModelConfig& c, int64_t layer, const std::string& entry) {
  NamedExperts named;
  const HfTensorLayout& hf = c.family->hf_layout;
  if (!c.has_experts(layer) || hf.stacked_experts || entry == kAllLinear) return named;
  for (int64_t e = 0; e < c.moe.num_experts; ++e) {
    const std::string expert = fmt::format("{}.experts.{}.", moe_prefix(c, layer), e);
    named.gate += LoraConfig::names_module(entry, expert + hf.expert_gate);
    named.up += LoraConfig::names_module(entry, expert + hf.expert_up);
    named.down += LoraConfig::names_module(entry, expert + hf.expert_down);
  }
  return named;
}

NamedExperts named_experts(const ModelConfig& c, int64_t layer) {
  NamedExperts all;
  if (!c.lora.on()) return all;
  for (const std::string& entry : c.lora.target_modules) {
    const NamedExperts named = named_experts(c, layer, entry);
    all.gate = std::max(all.gate, named.gate);
    all.up = std::max(all.up, named.up);
    all.down = std::max(all.down, named.down);
  }
  return all;
}

LoraConfig lora_of_stacks(const ModelConfig& c) {
  LoraConfig lora = c.lora;
  std::vector<std::pair<std::string, int64_t>> ranks;
  std::vector<std::pair<std::string, double>> alphas;
  const HfTensorLayout& hf = c.family->hf_layout;
  const auto add = [&](int64_t layer, const char* stack, const std::string& matrix) {
    const std::string experts = moe_prefix(c, layer) + ".experts.",
                      weight = experts + "0." + matrix + ".weight";
    ranks.emplace_back(experts + stack, c.lora.rank_of(weight));
    alphas.emplace_back(experts + stack, c.lora.alpha_of(weight));
  };
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const NamedExperts named = named_experts(c, i);
    if (named.gate > 0) add(i, "gate_up_proj", hf.expert_gate);
    if (named.down > 0) add(i, "down_proj", hf.expert_down);
  }
  lora.rank_pattern.insert(lora.rank_pattern.begin(), ranks.begin(), ranks.end());
  lora.alpha_pattern.insert(lora.alpha_pattern.begin(), alphas.begin(), alphas.end());
  return lora;
}

void ExpertAdapters::declare(ParameterStore& store, ParameterSpec a, ParameterSpec b, double scale) {
  scale_ = scale;
  factor_ = blocks_shape_ = b.shape;
  const int64_t matrices = factor_.rank == 4 ? factor_[1] : 1, rank = factor_[factor_.rank - 1],
                all = factor_.elements() / rank, rows = matrices > 1 ? factor_[2] : all;
  blocks_shape_.dims[factor_.rank - 1] = matrices * rank;
  for (int64_t row = 0; row < all; row += rows)
    blocks_.push_back({rows, rank, row, 0, row, row / rows % matrices * rank});
  a.adapter = b.adapter = true;
  a_ = store.add({std::move(a)});
  b_ = store.add({std::move(b)});
}

Tensor ExpertAdapters::scaled_b(Step& step) const {
  Tensor wide =
      step.memory.allocate(MemoryKind::temporaries, "B of experts, wide", step.stat_type(), blocks_shape_);
  if (blocks_shape_ != factor_) fill_zero(step.compute, wide);
  copy_rectangles(step.compute, wide, step.params.value(b_), blocks_);
  scale_by(step.compute, wide, scale_);
  if (wide.dtype == step.dtype) return wide;
  const Tensor blocks = step.temporary("B of experts", blocks_shape_);
  cast(step.compute, blocks, wide);
  step.memory.release(wide);
  return blocks;
}

Tensor ExpertAdapters::inner(Step& step, Tensor x, const GroupRows& rows) const {
  const Tensor z = step.temporary("LoRA of experts", {x.shape[0], blocks_shape_[blocks_shape_.rank - 1]});
  grouped_matmul(step.compute, z, x, step.params.value(a_), rows);
  return z;
}

Tensor ExpertAdapters::inner_gradient(Step& step, Tensor dy, const GroupRows& rows) const {
  Tensor b = scaled_b(step);
  const Tensor dz = step.temporary("d LoRA of experts", {dy.shape[0], b.cols()});
  grouped_matmul_dx(step.compute, dz, dy, b, rows);
  step.release(b);
  return dz;
}

void ExpertAdapters::add(Step& step, Tensor y, Tensor x, const GroupRows& rows) const {
  Tensor b = scaled_b(step), z = inner(step, x, rows);
  Tensor sum = step.temporary("outputs of adapters", y.shape);
  grouped_matmul(step.compute, sum, z, b, rows);
  const int64_t all = total_rows(rows);
  add_to(step.compute, y.narrow(0, all), sum.narrow(0, all));
  for (Tensor* t : {&sum, &z, &b}) step.release(*t);
}

void ExpertAdapters::add_input_gradient(Step& step, Tensor dx, Tensor dy, const GroupRows& rows) const {
  Tensor dz = inner_gradient(step, dy, rows);
  Tensor sum = step.temporary("gradients of adapters' inputs", dx.shape);
  grouped_matmul_dx(step.compute, sum, dz, step.params.value(a_), rows);
  const int64_t all = total_rows(rows);
  add_to(step.compute, dx.narrow(0, all), sum.narrow(0, all));
  for (Tensor* t : {&sum, &dz}) step.release(*t);
}

void ExpertAdapters::weight_backward(Step& step, Tensor dy, Tensor x, const GroupRows& rows,
                                     bool last) const {
  if (step.params.trains(a_)) {
    Tensor dz = inner_gradient(step, dy, rows);
    const GradBuffer to = step.params.accumulate(a_);
    grouped_matmul_dw(step.compute, to.tensor, dz, x, rows, to.accumulate);
    if (last) step.params.grad_ready(a_);
    step.release(dz);
  }
  if (!step.params.trains(b_)) return;
  Tensor z = inner(step, x, rows);
  const GradBuffer to = step.params.accumulate(b_);
  const auto temporary = [&](const char* name, Shape shape) {
    return step.memory.allocate(MemoryKind::temporaries, name, to.tensor.dtype, shape);
  };
  Tensor blocks = temporary("d B of experts, blocks", blocks_shape_);
  grouped_matmul_dw(step.compute, blocks, dy, z, rows, false);
  scale_by(step.compute, blocks, scale_);
  std::vector<CopyRectangle> back;
  for (const CopyRectangle& block : blocks_) back.push_back(block.reversed());
  Tensor sum = to.accumulate ? temporary("d B of experts", factor_) : to.tensor;
  copy_rectangles(step.compute, sum, blocks, back);
  if (to.accumulate) {
    add_to(step.compute, to.tensor, sum);
    step.release(sum);
  }
  step.release(blocks);
  step.release(z);
  if (last) step.params.grad_ready(b_);
}

}  // namespace ltrain
