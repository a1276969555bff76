#include "parallel/optim/tensor_sums.h"

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"

namespace ltrain {

void TensorSums::add(int id, const ParameterSpec& spec, const ParameterRule& rule) {
  of_parameter_.resize(static_cast<size_t>(id) + 1, -1);
  int& at = of_parameter_.back();
  for (size_t t = 0; t < tensors_.size() && at < 0; ++t)
    if (tensors_[t].spec->name == spec.name) at = static_cast<int>(t);
  if (at >= 0) return;  // another part of the same tensor
  at = static_cast<int>(tensors_.size());
  tensors_.push_back({id, &spec, &rule});
}

void TensorSums::allocate(UpdateContext& c) {
  sums_ = allocate_whole(c, "sums of tensors", DType::f64, 2 * static_cast<int64_t>(tensors_.size()));
}

void TensorSums::add_squares(UpdateContext& c, UpdateRule rule) {
  fill_zero(c.compute(), sums_);
  c.each_owned(rule, [&](const ParameterPart& p) {
    const Tensor sums = of(p.id);
    sum_squares(c.compute(), sums.flat(0, {1}), own_part(c, p.elements.master));
    sum_squares(c.compute(), sums.flat(1, {1}), own_part(c, p.elements.grad));
  });
  reduce_sums(c, sums_);
}

Tensor allocate_whole(UpdateContext& c, std::string_view name, DType type, int64_t n) {
  if (n == 0) return {};
  const Tensor t = c.memory().allocate(MemoryKind::optimizer, name, type, {n});
  if (c.compute().meta()) place_set(c.compute(), t, kAllAxes, Placement::R());
  return t;
}

Tensor own_part(UpdateContext& c, const Tensor& t) {
  if (!c.compute().meta()) return t;
  const Tensor part = place_apart(c.compute(), t);
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); a != Axis::pipeline && part.record->place[a] == Placement::R())
      place_set(c.compute(), part, a, Placement::S(0));
  return part;
}

std::vector<const Group*> groups_of_parts(const Groups& g) {
  std::vector<const Group*> several;
  for (const Group* group : {&g.gradient, &g.tensor, &g.depth, &g.row, &g.column})
    if (group->size() > 1) several.push_back(group);
  return several;
}

void reduce_sums(UpdateContext& c, Tensor sums) {
  if (c.compute().meta())  // ranks without a summand have added zero
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis a = static_cast<Axis>(i); a != Axis::pipeline)
        place_set(c.compute(), sums, a, Placement::P());
  for (const Group* g : groups_of_parts(c.groups())) g->all_reduce(c.compute(), sums);
}

void move_along(UpdateContext& c, UpdateRule rule,
                const std::function<DirectionArgs(const ParameterPart&)>& args_of) {
  c.each_updated(rule, [&](const ParameterPart& p) {
    const DirectionArgs d = args_of(p);
    const Tensor sums = d.scale == DirectionScale::none ? Tensor() : c.sums().of(p.id);
    apply_direction(c.compute(), p.elements.master, p.elements.grad, p.elements.low, sums, d);
  });
}

}  // namespace ltrain
