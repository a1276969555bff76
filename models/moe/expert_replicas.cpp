#include "models/moe/expert_replicas.h"

#include <algorithm>
#include <numeric>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"

namespace ltrain {

std::vector<int32_t> ExpertReplicas::hot(const std::vector<int64_t>& all, double weight_bytes,
                                         double row_bytes) const {
  const int64_t ranks = groups_.expert.size(), local = exchange_.local_experts();
  std::vector<int64_t> from_others(experts_);
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t e = 0; e < experts_; ++e)
      if (e / local != rank) from_others[e] += all[rank * experts_ + e];
  std::vector<int32_t> order(experts_);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return from_others[a] > from_others[b]; });
  order.resize(std::min<size_t>(order.size(), static_cast<size_t>(most_)));
  std::erase_if(order,
                [&](int32_t e) { return static_cast<double>(from_others[e]) * row_bytes <= weight_bytes; });
  return order;
}

ChosenExperts ExpertReplicas::choose(Step& step, const Routing& r, const std::vector<int64_t>& all,
                                     ExpertStacks stacks, DType gradients, std::vector<Copy>& copies) const {
  const int64_t tokens = r.slots.shape[0], k = r.slots.shape[1];
  double elements = 0;
  for (const Tensor* stack : stacks.parts())
    elements += static_cast<double>(stack->elements()) / static_cast<double>(stack->shape[0]);
  std::vector<int32_t> chosen =
      hot(all, elements * static_cast<double>(dtype_size(step.dtype) + dtype_size(gradients)),
          4.0 * static_cast<double>(stacks.down.shape[1] * dtype_size(step.dtype)));
  if (step.compute.meta()) {
    chosen.resize(most_);
    std::iota(chosen.begin(), chosen.end(), 0);
  }
  ChosenExperts travelling;
  copies.assign(most_, {});
  for (int i = 0; i < most_; ++i) {
    Copy& c = copies[i];
    c.dispatched.routing = r;
    TokenDispatch::own_rows(step, c.dispatched, tokens, k, 1);
    c.dispatched.counts.groups = {0};
    if (i >= static_cast<int>(chosen.size())) continue;
    c.expert = travelling.listed[travelling.count++] = chosen[i];
    sort_choices(step.compute, c.dispatched.routing, r.slots, r.counts, {0, {c.expert}, 1, true});
    ExpertRowCounts& counts = c.dispatched.counts;
    counts.sorted = counts.received = all[groups_.expert.rank() * experts_ + c.expert];
    counts.groups = {counts.sorted};
  }
  return travelling;
}

void ExpertReplicas::fetch_start(Step& step, std::vector<Copy>& copies, ExpertStacks stacks) const {
  static constexpr const char* kNames[] = {
      "copy of a hot expert's gate and up", "copy of a hot expert's down",
      "copy of a hot expert's bias of gate and up", "copy of a hot expert's bias of down"};
  const std::vector<Tensor*> from = stacks.parts();
  for (Copy& c : copies) {
    c.stacks = stacks;
    const std::vector<Tensor*> to = c.stacks.parts();
    for (size_t i = 0; i < to.size(); ++i) {
      Shape one = from[i]->shape;
      one.dims[0] = 1;
      *to[i] = step.activation(kNames[i], one);
    }
    if (c.expert < 0) continue;
    for (size_t i = 0; i < to.size(); ++i)  // waiting for the last is enough: the group keeps its order
      c.arrived = fetch_start(step, c, *to[i], *from[i]);
  }
}

AsyncHandle ExpertReplicas::fetch_start(Step& step, const Copy& c, Tensor to, Tensor stack) const {
  const Group& g = groups_.expert;
  Tensor own = stack.narrow(0, 1);  // on other ranks it only gives the owner's placement
  if (owner(c) == g.rank()) {
    cast(step.compute, to, stack.narrow(c.expert % exchange_.local_experts(), 1));
    own = to;
  }
  return g.start_broadcast(step.compute, to, own, owner(c));
}

void ExpertReplicas::sum_gradient(Step& step, const Copy& c, Tensor dcopy) const {
  groups_.expert.reduce(step.compute, dcopy, owner(c), ExpertExchange::kRows);
}

void ExpertReplicas::give_gradient(Step& step, const Copy& c, Tensor stack, Tensor dcopy) const {
  if (owner(c) != groups_.expert.rank()) return;
  add_to(step.compute, stack.narrow(c.expert % exchange_.local_experts(), 1), dcopy);
}

void ExpertReplicas::release(Step& step, Copy& c) {
  TokenDispatch::release(step, c.dispatched);
  release_weights(step, c);
}

void ExpertReplicas::release_weights(Step& step, Copy& c) {
  for (Tensor* t : c.stacks.parts()) step.release(*t);
}

}  // namespace ltrain
