// Sophia-H: once in a while the step is made twice, at weights that are moved a little along random signs,
// and as it is. What the gradients differ by estimates the diagonal of the Hessian
// (kernels/optimizer/sophia.h).
#include <algorithm>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/optimizer/sophia.h"
#include "kernels/tensor/rng.h"
#include "parallel/zero/parameter_store.h"

namespace ltrain {

BoxElements ParameterStore::elements_of(const Parameter& p, int64_t from) {
  const Slice& s = p.spec.slice;
  BoxElements e;
  e.rank = s.global.rank;
  for (int d = 0; d < e.rank; ++d)
    e.global[d] = s.global[d], e.offset[d] = s.offset[d], e.extent[d] = s.extent[d];
  e.begin = s.begin + from - p.offset;
  return e;
}

uint64_t ParameterStore::signs_seed() const {
  return layout_.seed + static_cast<uint64_t>(step_) * 0x9e3779b97f4a7c15ull;
}

static uint64_t signs_stream(const std::string& name) { return hash_name("signs of " + name); }

bool ParameterStore::estimates(int64_t step) const {
  return layout_.optimizer.uses(UpdateRule::sophia_h) && (step - 1) % layout_.optimizer.hessian_interval == 0;
}

template <class F>
void ParameterStore::each_sophia(F f) {
  for (Bucket& b : buckets_)
    if (b.kind.rule.rule == UpdateRule::sophia_h && moves(b)) f(b);
}

void ParameterStore::shift_values() {
  each_sophia([&](Bucket& b) {
    const Tensor values = held(b);
    cast(*compute_, b.swapped, values);
    each_parameter(b, stored_begin(b), stored_count(b), [&](const Parameter& p, int64_t from, int64_t n) {
      add_signs(*compute_, values.flat(from - stored_begin(b), {n}), layout_.optimizer.hessian_radius,
                signs_seed(), signs_stream(p.spec.name), elements_of(p, from));
    });
  });
  publish_values();
}

void ParameterStore::keep_shifted_gradients() {
  each_sophia([&](Bucket& b) {
    cast(*compute_, held(b), b.swapped);  // the weights as they were, bit for bit
    const Tensor grad = layout_.sharding.shards_gradients()
                            ? b.grad_piece
                            : b.grad.flat(stored_begin(b), {b.swapped.elements()});
    cast(*compute_, b.swapped, grad);
    if (!compute_->meta()) return;
    const AxisSet cut = layout_.sharding.shards_optimizer() ? b.kind.cut | groups_->mesh.shard : b.kind.cut;
    for (Axis a : {Axis::data, Axis::context, Axis::replica, Axis::expert})
      place_require(*compute_, "gradients of swapped weights", b.swapped, a,
                    cut.has(a) ? Placement::S(0) : Placement::R());
  });
  publish_values();
}

/// What each rank holds of the values, to the others.
void ParameterStore::publish_values() {
  each_sophia([&](Bucket& b) {
    place_bucket(b, layout_.sharding.shards_weights() ? b.value_piece : b.value,
                 layout_.sharding.shards_optimizer() && shard_group(b).size() > 1);
    gather_values(b);
  });
  wait_for_values();
  require_values("swapped weights");
}

void ParameterStore::update_sophia(const AdamwArgs& step) {
  const OptimizerSettings& o = layout_.optimizer;
  each_sophia([&](Bucket& b) {
    const int64_t begin = stored_begin(b);
    if (compute_->meta() && layout_.sharding.gathers_updates())
      place_set(*compute_, b.value, groups_->mesh.shard, Placement::S(0));  // where a piece is padding, too
    each_parameter(b, begin, stored_count(b), [&](const Parameter& p, int64_t from, int64_t n) {
      const Range r = range(b, from, n);
      const Tensor beside = estimates(step_) ? b.swapped.flat(from - begin, {n}) : Tensor();
      sophia(*compute_, r.master, r.moments[0], r.moments[1], r.grad, beside, p.rule.decay,
             {args_of(p.rule, step), o.sophia_gamma, o.hessian_radius}, signs_seed(),
             signs_stream(p.spec.name), elements_of(p, from));
      average(b, from, r.master, step.step);
    });
  });
}

}  // namespace ltrain
