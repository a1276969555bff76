#include "models/moe/expert_adapters.h"

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/grouped/grouped_bias.h"
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

bool drops_inputs_of_experts(const ModelConfig& c) {
  if (!c.lora.on() || c.lora.dropout == 0) return false;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i)
    if (named_experts(c, i).any()) return true;
  return false;
}

int64_t row_key(int64_t row) {
  constexpr uint64_t kLimb = 0x1fff, kNormal = 0x2000;
  uint64_t key = 0;
  for (int i = 0; i < 4; ++i) key |= (kNormal | (static_cast<uint64_t>(row) >> (13 * i) & kLimb)) << (16 * i);
  return static_cast<int64_t>(key);
}

void ExpertAdapters::declare(ParameterStore& store, ParameterSpec a, ParameterSpec b, double scale,
                             std::vector<uint64_t> masks) {
  scale_ = scale;
  masks_ = std::move(masks);
  factor_ = blocks_shape_ = b.shape;
  const int64_t all = factor_.elements() / rank(), rows = matrices() > 1 ? factor_[2] : all;
  blocks_shape_.dims[factor_.rank - 1] = matrices() * rank();
  for (int64_t row = 0; row < all; row += rows)
    blocks_.push_back({rows, rank(), row, 0, row, row / rows % matrices() * rank()});
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

void ExpertAdapters::drop_rows(Step& step, Tensor to, Tensor from, const GroupRows& rows, int64_t matrix,
                               const ExpertDropout& drop) const {
  Dropout d;
  d.p = drop.p;
  d.seed = drop.seed;
  d.sample_index = drop.keys;  // a key is a sample of one position
  d.rows.total = 1;
  d.part = drop.part;
  d.parts = drop.parts;
  for (size_t e = 0; e < rows.size(); d.rows.first_row += rows[e++]) {
    if (rows[e] == 0) continue;
    d.stream = masks_[static_cast<size_t>(matrix) * rows.size() + e];
    const int64_t first = d.rows.first_row;
    dropout(step.compute, to.narrow(first, rows[e]), from.narrow(first, rows[e]), d);
  }
}

Tensor ExpertAdapters::dropped(Step& step, Tensor x, const GroupRows& rows, int64_t matrix,
                               const ExpertDropout& drop) const {
  if (!drop.on()) return x;
  const Tensor copy = step.temporary("dropout of experts", x.shape);
  drop_rows(step, copy, x, rows, matrix, drop);
  return copy;
}

Tensor ExpertAdapters::columns_of(Step& step, Tensor z, const GroupRows& rows, int64_t matrix) const {
  const Tensor some = step.temporary("LoRA of one matrix", z.shape);
  fill_zero(step.compute, some);
  copy_rectangles(step.compute, some, z,
                  {{total_rows(rows), rank(), 0, matrix * rank(), 0, matrix * rank()}});
  return some;
}

/// With dropout each matrix has an input of its own: its product has the columns of all, and gives its own.
Tensor ExpertAdapters::inner(Step& step, Tensor x, const GroupRows& rows, const ExpertDropout& drop) const {
  const Tensor z = step.temporary("LoRA of experts", {x.shape[0], blocks_shape_[-1]});
  for (int64_t m = 0; m < (drop.on() ? matrices() : 1); ++m) {
    Tensor input = dropped(step, x, rows, m, drop);
    Tensor part = m == 0 ? z : step.temporary("LoRA of one matrix", z.shape);
    grouped_matmul(step.compute, part, input, step.params.value(a_), rows);
    if (drop.on()) step.release(input);
    if (m == 0) continue;
    copy_rectangles(step.compute, z, part, {{total_rows(rows), rank(), 0, m * rank(), 0, m * rank()}});
    step.release(part);
  }
  return z;
}

Tensor ExpertAdapters::inner_gradient(Step& step, Tensor dy, const GroupRows& rows) const {
  Tensor b = scaled_b(step);
  const Tensor dz = step.temporary("d LoRA of experts", {dy.shape[0], b.cols()});
  grouped_matmul_dx(step.compute, dz, dy, b, rows);
  step.release(b);
  return dz;
}

void ExpertAdapters::add(Step& step, Tensor y, Tensor x, const GroupRows& rows,
                         const ExpertDropout& drop) const {
  if (!step.adapters) return;
  add_factors(step, y, x, rows, drop);
  if (!multiplies()) return;
  Tensor factors = magnitude_factors(step);
  grouped_scale_columns(step.compute, y, y, factors, rows);
  step.release(factors);
}

void ExpertAdapters::add_factors(Step& step, Tensor y, Tensor x, const GroupRows& rows,
                                 const ExpertDropout& drop) const {
  Tensor b = scaled_b(step), z = inner(step, x, rows, drop);
  Tensor sum = step.temporary("outputs of adapters", y.shape);
  grouped_matmul(step.compute, sum, z, b, rows);
  const int64_t all = total_rows(rows);
  add_to(step.compute, y.narrow(0, all), sum.narrow(0, all));
  for (Tensor* t : {&sum, &z, &b}) step.release(*t);
}

void ExpertAdapters::add_input_gradient(Step& step, Tensor dx, Tensor dy, const GroupRows& rows,
                                        const ExpertDropout& drop) const {
  Tensor dz = inner_gradient(step, dy, rows);
  const int64_t all = total_rows(rows), parts = drop.on() ? matrices() : 1;
  for (int64_t m = 0; m < parts; ++m) {
    Tensor part = parts > 1 ? columns_of(step, dz, rows, m) : dz;
    Tensor sum = step.temporary("gradients of adapters' inputs", dx.shape);
    grouped_matmul_dx(step.compute, sum, part, step.params.value(a_), rows);
    if (parts > 1) step.release(part);
    if (drop.on()) drop_rows(step, sum, sum, rows, m, drop);
    add_to(step.compute, dx.narrow(0, all), sum.narrow(0, all));
    step.release(sum);
  }
  step.release(dz);
}

void ExpertAdapters::weight_backward(Step& step, Tensor dy, Tensor x, const GroupRows& rows,
                                     const ExpertDropout& drop, bool last) const {
  if (!multiplies()) return factors_backward(step, dy, x, rows, drop, last);
  Tensor factors = magnitude_factors(step);
  Tensor before = step.temporary("d DoRA of experts", dy.shape);
  grouped_scale_columns(step.compute, before, dy, factors, rows);
  if (step.params.trains(change_)) magnitude_backward(step, before, x, factors, rows, drop, last);
  factors_backward(step, before, x, rows, drop, last);
  step.release(before);
  step.release(factors);
}

void ExpertAdapters::factors_backward(Step& step, Tensor dy, Tensor x, const GroupRows& rows,
                                      const ExpertDropout& drop, bool last) const {
  if (step.params.trains(a_)) {
    Tensor dz = inner_gradient(step, dy, rows);
    const GradBuffer to = step.params.accumulate(a_);
    const int64_t parts = drop.on() ? matrices() : 1;
    for (int64_t m = 0; m < parts; ++m) {
      Tensor input = dropped(step, x, rows, m, drop), part = parts > 1 ? columns_of(step, dz, rows, m) : dz;
      grouped_matmul_dw(step.compute, to.tensor, part, input, rows, to.accumulate || m > 0);
      if (parts > 1) step.release(part);
      if (drop.on()) step.release(input);
    }
    if (last) step.params.grad_ready(a_);
    step.release(dz);
  }
  if (!step.params.trains(b_)) return;
  Tensor z = inner(step, x, rows, drop);
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
