// LoRA of a linear layer. The factors of its parts are two matrices: A (parts rank, in), and B as blocks of a
// matrix (out, parts rank) that is zero elsewhere. All parts of one rank and scale are multiplied at once,
// for the price of `parts` times the few FLOPs of a factor.
//
// Sharding follows W's. column: B has W's rows, and A is whole on each tensor rank, whose gradient is a sum
// over them. row: A has W's columns, so that x A^T and with it the layer's output are summands, which one
// collective sums; B is whole, and its gradient is a sum.
#include <algorithm>
#include <cmath>

#include "kernels/elementwise/tensor_ops.h"
#include "models/layers/linear.h"

namespace ltrain {

void Linear::declare_adapters(ParameterStore& store, const Groups& groups, bool sequence_parallel,
                              const std::vector<LinearPart>& parts, int64_t in, const LoraConfig& lora) {
  struct Group {
    std::vector<ParameterSpec> a, b;
    Adapters made;
  };
  std::vector<Group> groups_of;
  int64_t row = 0;
  std::vector<bool> adapted;
  for (const LinearPart& p : parts) {
    const std::string weight = p.name + ".weight", a_name = lora_a_name(weight);
    const int64_t rank = lora.rank_of(weight);
    ParameterSpec part{
        .name = lora_b_name(weight), .shape = {p.rows, rank}, .init = Init::zeros, .std = 0, .decay = true};
    part.adapter = true;
    if (p.all) part.slice = Slice::box({p.all, rank}, {p.first, 0}, {p.rows, rank});
    if (cut_ == LinearSharding::column)
      part = cut_rows(std::move(part), groups, p.copies);
    else if (cut_ == LinearSharding::row || sequence_parallel)
      part.sum = Axis::tensor;
    const int64_t rows = part.shape[0];
    row += rows;
    adapted.push_back(lora.adapts(weight));
    if (!lora.adapts(weight)) continue;
    LT_CHECK(groups.one_d(), "{}: expected tensor parallelism in 1D for LoRA, got {} ranks in another mode",
             weight, groups.inner().size());
    const double scale = lora.scale_of(weight);
    auto group = std::find_if(groups_of.begin(), groups_of.end(), [&](const Group& g) {
      // With dropout each A has an input of its own.
      return g.made.rank == rank && g.made.scale == scale && (lora.dropout == 0 || g.a.back().name == a_name);
    });
    if (group == groups_of.end()) {
      group = groups_of.emplace(group);
      group->made.rank = rank;
      group->made.scale = scale;
      group->made.mask = hash_name(a_name);
    }
    auto& [a, b, made] = *group;
    if (a.empty() || a.back().name != a_name) {
      if (store.find(a_name) >= 0)
        fail(ExitCode::usage,
             "lora.target_modules: {} is one matrix of which layers with parallel.tensor = {} hold parts "
             "apart, since "
             "it exceeds model.num_key_value_heads, and its adapter is one; leave it out, or lower "
             "parallel.tensor",
             module_of(weight), groups.tensor.size());
      // the variance of PEFT's uniform distribution up to 1 / sqrt(in)
      ParameterSpec factor{.name = a_name,
                           .shape = {rank, in},
                           .init = Init::normal,
                           .std = 1 / std::sqrt(3.0 * static_cast<double>(in)),
                           .decay = true};
      factor.adapter = true;
      if (cut_ == LinearSharding::row)
        factor = cut_over(Axis::tensor, std::move(factor), 1, groups.tensor.rank(), groups.tensor.size());
      else if (cut_ == LinearSharding::column || sequence_parallel)
        factor.sum = Axis::tensor;
      a.push_back(std::move(factor));
    }
    made.blocks.push_back(
        {rows, rank, made.rows, 0, row - rows, (static_cast<int64_t>(a.size()) - 1) * rank});
    made.rows += rows;
    b.push_back(std::move(part));
  }
  lora_dropout_ = lora.dropout;
  for (Group& group : groups_of) {
    group.made.adapters = static_cast<int>(group.a.size());
    group.made.a = store.add(std::move(group.a));
    group.made.b = store.add(std::move(group.b));
    lora_.push_back(std::move(group.made));
  }
  if (lora.dora && !lora_.empty()) declare_magnitudes(store, groups, sequence_parallel, parts, adapted);
}

Dropout Linear::lora_dropout(const Step& step) const {
  Dropout d;
  if (lora_.empty() || lora_dropout_ == 0 || !step.training) return d;
  LT_CHECK(step.batch, "LoRA: expected a running block where adapters have dropout {}, got none",
           lora_dropout_);
  const MicroBatch& mb = *step.batch;
  static_cast<RowRandom&>(d) =
      step.random("", mb, cut_ == LinearSharding::whole ? step.row_map(mb) : step.whole_rows(mb));
  d.p = lora_dropout_;
  if (cut_ == LinearSharding::row) {
    d.part = step.groups.tensor.rank();
    d.parts = step.groups.tensor.size();
  }
  return d;
}

Tensor Linear::dropped(Step& step, Tensor x, const Adapters& l, Dropout drop) {
  if (!drop.on()) return x;
  drop.stream = l.mask;
  const Tensor copy = step.temporary("LoRA dropout", x.shape);
  dropout(step.compute, copy, x, drop);
  return copy;
}

Tensor Linear::lora_b_blocks(Step& step, const Adapters& l) const {
  const Tensor b = step.params.value(l.b, static_cast<int>(l.blocks.size()));
  Tensor blocks = step.temporary("LoRA B", {out_, l.adapters * l.rank});
  if (l.blocks.size() > 1 || l.rows < out_) fill_zero(step.compute, blocks);
  copy_rectangles(step.compute, blocks, b, l.blocks);
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

Tensor Linear::lora_inner(Step& step, Tensor x, const Adapters& l) {
  return scaled_product(step, x, step.params.value(l.a, l.adapters), true, l.scale);
}

Tensor Linear::lora_inner_gradient(Step& step, Tensor dy, const Adapters& l) const {
  Tensor b = lora_b_blocks(step, l);
  const Tensor dz = scaled_product(step, dy, b, false, l.scale);
  step.memory.release(b);
  return dz;
}

void Linear::add_lora(Step& step, Tensor y, Tensor x, const Dropout& drop) const {
  if (!step.adapters) return;
  for (const Adapters& l : lora_) add_lora(step, y, x, l, drop);
}

void Linear::add_lora(Step& step, Tensor y, Tensor x, const Adapters& l, const Dropout& drop) const {
  Tensor input = dropped(step, x, l, drop);
  Tensor z = lora_inner(step, input, l);
  release_whole(step, input, x);
  Tensor b = lora_b_blocks(step, l);
  MatmulArgs args;
  args.trans_b = true;
  args.accumulate = true;
  matmul(step.compute, y, z, b, args);
  step.memory.release(b);
  step.memory.release(z);
}

void Linear::add_lora_input_gradient(Step& step, Tensor dx, Tensor dy) const {
  Dropout drop = lora_dropout(step);
  MatmulArgs args;
  args.accumulate = !drop.on();
  for (const Adapters& l : lora_) {
    Tensor dz = lora_inner_gradient(step, dy, l);
    Tensor to = drop.on() ? step.temporary("d LoRA dropout", dx.shape) : dx;
    matmul(step.compute, to, dz, step.params.value(l.a, l.adapters), args);
    if (drop.on()) {
      drop.stream = l.mask;
      dropout(step.compute, to, to, drop);
      add_to(step.compute, dx, to);
      step.memory.release(to);
    }
    step.memory.release(dz);
  }
}

void Linear::lora_weight_backward(Step& step, Tensor dy, Tensor x, const Dropout& drop) const {
  for (const Adapters& l : lora_) {
    Tensor input = dropped(step, x, l, drop);
    lora_weight_backward(step, dy, input, l);
    release_whole(step, input, x);
  }
}

void Linear::lora_weight_backward(Step& step, Tensor dy, Tensor x, const Adapters& l) const {
  MatmulArgs args;
  args.trans_a = true;
  if (step.params.trains(l.a)) {
    Tensor dz = lora_inner_gradient(step, dy, l);
    const GradBuffer to = step.params.accumulate(l.a, l.adapters);
    args.accumulate = to.accumulate;
    matmul(step.compute, to.tensor, dz, x, args);
    step.params.grad_ready(l.a);
    step.memory.release(dz);
  }
  if (!step.params.trains(l.b)) return;
  Tensor z = lora_inner(step, x, l);
  const GradBuffer to = step.params.accumulate(l.b, static_cast<int>(l.blocks.size()));
  if (l.blocks.size() == 1 && l.rows == out_) {
    args.accumulate = to.accumulate;
    matmul(step.compute, to.tensor, dy, z, args);
  } else {
    args.accumulate = false;
    const auto temporary = [&](const char* name, Shape shape) {
      return step.memory.allocate(MemoryKind::temporaries, name, to.tensor.dtype, shape);
    };
    Tensor blocks = temporary("LoRA dB, blocks", {out_, l.adapters * l.rank});
    matmul(step.compute, blocks, dy, z, args);
    std::vector<CopyRectangle> back;
    for (const CopyRectangle& block : l.blocks) back.push_back(block.reversed());
    Tensor sum = to.accumulate ? temporary("LoRA dB", to.tensor.shape) : to.tensor;
    copy_rectangles(step.compute, sum, blocks, back);
    if (to.accumulate) {
      add_to(step.compute, to.tensor, sum);
      step.memory.release(sum);
    }
    step.memory.release(blocks);
  }
  step.params.grad_ready(l.b);
  step.memory.release(z);
}

}  // namespace ltrain
