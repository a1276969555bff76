#include "parallel/zero/bucket_updates.h"

#include <utility>

#include "kernels/meta/placement_rules.h"

namespace ltrain {

BucketUpdates::BucketUpdates(const StoreContext& context, const ParameterLayout& layout,
                             const StepRules& rules, Weights& weights, const OptimizerStates& states,
                             GradientReducer& gradients, CompressedAllReduce& compressed,
                             ElementUpdates& elements, WeightAverage& average, uint64_t seed)
    : c_(context),
      layout_(layout),
      rules_(rules),
      weights_(weights),
      states_(states),
      gradients_(gradients),
      compressed_(compressed),
      elements_(elements),
      average_(average),
      seed_(seed),
      averaged_(layout.buckets().size()) {
  bool used[kUpdateRules + 1] = {};
  for (int id = 0; id < layout.count(); ++id) {
    const auto& p = layout.parameter(id);
    used[static_cast<int>(p.rule.rule)] = true;
    if (optimizer_of(p.rule.rule).needs_tensor_sums()) sums_.add(id, p.spec, p.rule);
  }
  sums_.allocate(*this);
  for (int i = 0; i < kUpdateRules; ++i)
    if (used[i]) updates_[i] = optimizer_of(static_cast<UpdateRule>(i)).make_tensor_update(*this);
}

void BucketUpdates::update(const OptimizerStep& step) {
  step_ = step;
  bool whole[kUpdateRules] = {};
  for (const Bucket& b : layout_.buckets()) {
    if (!b.kind.rule.trains()) continue;
    if (!rules_.updates_elements(b)) {
      whole[static_cast<int>(b.kind.rule.rule)] = true;
      continue;
    }
    if (rules_.moves(b))
      elements_.update(b, step);
    else
      elements_.pass(b);
  }
  elements_.finish(step);
  for (int i = 0; i < kUpdateRules; ++i)
    if (whole[i]) updates_[i]->update();
  for (const Bucket& b : layout_.buckets())
    if (b.kind.derived() && rules_.moves(b)) weights_.derive(b, states_.stored_master(b));
  weights_.end_update();
}

void BucketUpdates::add_own_squares(const Bucket& b, const Tensor& total) {
  updates_[static_cast<int>(b.kind.rule.rule)]->add_own_squares(gradients_.unsummed(b),
                                                                layout_.shard_group(b).size(), total);
}

void BucketUpdates::begin_estimate() {
  for (const auto& u : updates_)
    if (u) u->begin_estimate();
}

void BucketUpdates::end_estimate(const OptimizerStep& step, double labels, double loss_scale) {
  step_ = step;
  for (const auto& u : updates_)
    if (u) u->end_estimate(labels, loss_scale);
}

void BucketUpdates::clear() {
  for (const auto& u : updates_)
    if (u) u->clear();
}

std::vector<WholeState> BucketUpdates::states() const {
  std::vector<WholeState> out;
  for (const auto& u : updates_)
    if (u)
      for (const WholeState& w : u->states()) out.push_back(w);
  return out;
}

std::vector<int> BucketUpdates::buckets(UpdateRule r) {
  std::vector<int> out;
  for (const Bucket& b : layout_.buckets())
    if (b.kind.rule.rule == r && rules_.moves(b)) out.push_back(b.index);
  return out;
}

void BucketUpdates::each_part(int bucket, Extent extent, const EachPart& f) {
  const Bucket& b = layout_.bucket(bucket);
  const bool owned = extent == Extent::owned, updated = extent == Extent::updated;
  if (owned && !layout_.adds(b)) return;
  std::exchange(averaged_[static_cast<size_t>(bucket)], AsyncHandle()).wait(c_.compute);
  if (updated) weights_.begin_writing(b);
  const int64_t stored = layout_.stored_begin(b);
  layout_.each_parameter(b, owned ? layout_.own_begin(b) : stored, owned ? b.own : layout_.stored_count(b),
                         [&](int id, int64_t from, int64_t n) {
                           const auto& p = layout_.parameter(id);
                           const ParameterPart part{.id = id,
                                                    .bucket = bucket,
                                                    .spec = p.spec,
                                                    .rule = p.rule,
                                                    .begin = from - p.offset,
                                                    .at = from - stored,
                                                    .elements = elements_.elements(b, from, n),
                                                    .args = elements_.args_of(p.rule, step_)};
                           f(part);
                           if (updated) average_.follow(b, from, part.elements.master, step_.step);
                         });
}

std::vector<BucketMember> BucketUpdates::members(int bucket) {
  std::vector<BucketMember> out;
  for (int id : layout_.members(layout_.bucket(bucket)))
    out.push_back({layout_.parameter(id).spec, layout_.parameter(id).offset});
  return out;
}

Elements BucketUpdates::stored(int bucket) {
  const Bucket& b = layout_.bucket(bucket);
  return elements_.elements(b, layout_.stored_begin(b), layout_.stored_count(b));
}

void BucketUpdates::require_gradients(int bucket, Tensor t, std::string_view when) {
  if (!c_.meta()) return;
  const Bucket& b = layout_.bucket(bucket);
  const AxisSet cut = c_.sharding.shards_optimizer() ? b.kind.cut | c_.groups.mesh.shard : b.kind.cut;
  for (Axis a : kEachGradientAxis)
    place_require(c_.compute, when, t, a, cut.has(a) ? Placement::S(0) : Placement::R());
}

void BucketUpdates::publish_weights(UpdateRule r, std::string_view when) {
  for (int i : buckets(r)) {
    weights_.end_writing(layout_.bucket(i));
    weights_.publish(layout_.bucket(i));
  }
  weights_.wait_published();
  weights_.require(when);
}

void BucketUpdates::average_moments(int bucket, Tensor values, double factor, Tensor where) {
  LT_CHECK(!c_.sharding.shards_optimizer(),
           "expected moments of all elements on every rank for an average, got sharded optimizer states");
  const Bucket& b = layout_.bucket(bucket);
  averaged_[static_cast<size_t>(bucket)] = layout_.shard_group(b).start(
      c_.compute, [&](Stream& on) { compressed_.run(on, b, values, factor, where, true); });
}

}  // namespace ltrain
