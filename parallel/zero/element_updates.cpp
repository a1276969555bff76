#include "parallel/zero/element_updates.h"

#include <algorithm>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/optimizer/round_stochastic.h"
#include "kernels/tensor/rng.h"

namespace ltrain {

ElementUpdates::ElementUpdates(const StoreContext& context, const ParameterLayout& layout,
                               const StepRules& rules, const OptimizerStates& states,
                               const GradientReducer& gradients, const OffloadedWeights& offloaded,
                               StateWindows& windows, HostUpdates& host, WeightAverage& average,
                               const UntouchedExperts& untouched, uint64_t seed, int64_t window)
    : c_(context),
      layout_(layout),
      rules_(rules),
      states_(states),
      gradients_(gradients),
      offloaded_(offloaded),
      windows_(windows),
      host_(host),
      average_(average),
      untouched_(untouched),
      seed_(seed),
      window_(window) {
  LT_CHECK(!host.on() || !average.on(),
           "expected no EMA of weights, which is on the device, with updates on the host");
}

void ElementUpdates::allocate() {
  int64_t most = 0;
  size_t moments = 0;
  for (const Bucket& b : layout_.buckets()) {
    if (!widens_stored() && !widens_gradients()) break;
    if (!b.kind.rule.trains() || !optimizer_of(b.kind.rule.rule).by_element() || takes_stored(b)) continue;
    most = std::max(most, host_.on() ? states_.resident(b) : layout_.stored_count(b));
    moments = std::max(moments, states_.moments(b));
  }
  const size_t count = most == 0 ? 0 : (widens_stored() ? moments + 1 : 0) + widens_gradients();
  host_.lay_out(count);
  for (size_t s = 0; s < count; ++s)
    wide_.push_back(c_.memory.allocate(MemoryKind::optimizer, "window of states", c_.precision.wide(),
                                       {std::min(window_, most)}));
}

Elements ElementUpdates::elements(const Bucket& b, int64_t from, int64_t n) const {
  Elements e;
  states_.show(b, from, n, e);
  e.grad = gradients_.part(b, from, n);
  return e;
}

OptimizerStep ElementUpdates::args_of(const ParameterRule& r, const OptimizerStep& step) const {
  OptimizerStep a = step;
  // the first step after the routers' warm-up
  if (!r.router) a.step = std::max<int64_t>(1, a.step - rules_.optimizer.router_warmup);
  a.lr *= r.lr_scale;
  if (r.weight_decay) a.weight_decay = *r.weight_decay;
  return a;
}

/// Elements of parameters in [from, from + n). `all` has the states of that range, in the type of the
/// arithmetic.
ElementPart ElementUpdates::part_of_range(const Bucket& b, int64_t from, int64_t n, const Elements& all,
                                          const OptimizerStep& step) const {
  const std::vector<int> ids = layout_.members(b);
  int64_t first = -1;
  std::vector<ElementRun> runs;  // ends relative to `first`
  for (size_t i = 0, j; i < ids.size(); i = j) {
    const ParameterRule& rule = layout_.parameter(ids[i]).rule;
    for (j = i; j < ids.size() && layout_.parameter(ids[j]).rule == rule;) ++j;
    const int64_t begin = std::max(from, layout_.parameter(ids[i]).offset);
    const int64_t end = std::min(from + n, j < ids.size() ? layout_.parameter(ids[j]).offset : b.padded);
    if (begin >= end) continue;
    if (first < 0) first = begin;
    runs.push_back({end - first, rule.decay, args_of(rule, step)});
  }
  if (runs.empty()) return {};
  return {part_of(all, first - from, runs.back().end), runs};
}

void ElementUpdates::update_range(const Site& site, const Bucket& b, int64_t from, int64_t n,
                                  const Elements& all, const OptimizerStep& step) const {
  const ElementPart p = part_of_range(b, from, n, all, step);
  if (!p.runs.empty())
    optimizer_of(b.kind.rule.rule).update_elements(site.on, p.elements, p.runs, rules_.optimizer);
  average_.follow(b, from, all.master, step.step);
}

/// Stochastic rounding for 16-bit weights without fp32 master weights.
void ElementUpdates::round_weights(Stream& on, const Bucket& b, int64_t from, int64_t n, const Tensor& to,
                                   const Tensor& wide, int64_t step) const {
  const uint64_t seed = seed_of_step(seed_, step);
  layout_.each_parameter(b, from, n, [&](int id, int64_t first, int64_t count) {
    const auto& p = layout_.parameter(id);
    round_stochastic(on, to.flat(first - from, {count}), wide.flat(first - from, {count}), seed,
                     hash_name("rounding of " + p.spec.name), elements_of(p.spec, first - p.offset));
  });
}

/// update_range for states as stored.
void ElementUpdates::update_stored(const Site& site, const Bucket& b, int64_t from, int64_t n,
                                   const Elements& stored, const OptimizerStep& step) const {
  if (takes_stored(b)) return update_range(site, b, from, n, stored, step);
  const DType wide = c_.precision.wide();
  const int64_t most = site.wide[0].elements();
  for (int64_t at = 0; at < n; at += most) {
    const int64_t some = std::min(most, n - at);
    const Elements r = part_of(stored, at, some);
    Elements w = r;
    size_t used = 0;
    const auto widen = [&](Tensor& t) {
      if (t.dtype == wide) return;
      const Tensor to = site.wide[used++].flat(0, {some});
      cast(site.on, to, t);
      t = to;
    };
    widen(w.master);
    for (Tensor& t : w.states) widen(t);
    widen(w.grad);
    update_range(site, b, from + at, some, w, step);
    if (r.master.dtype != wide) round_weights(site.on, b, from + at, some, r.master, w.master, step.step);
    for (size_t s = 0; s < r.states.size(); ++s)
      if (r.states[s].dtype != wide) cast(site.on, r.states[s], w.states[s]);
  }
}

void ElementUpdates::update(const Bucket& b, const OptimizerStep& step) {
  const int64_t begin = layout_.stored_begin(b), n = layout_.stored_count(b);
  if (states_.is_coded(b)) {  // one rule for the bucket, so that its blocks are uniform
    const ParameterRule& rule = b.kind.rule;
    const CodedMoments& coded = states_.coded(b);
    Elements e = elements(b, begin, n);
    e.states = {coded.first, coded.second, coded.scales};
    together_.push_back({&b, begin, e.master, {e, {{n, rule.decay, args_of(rule, step)}}}});
    return;
  }
  const Site device{c_.compute, wide_};
  const int64_t resident = offloaded_.has(b) ? 0 : states_.resident(b);
  if (resident > 0 && !windows_.any() && takes_stored(b)) {
    untouched_.each_updated(b, begin, resident, [&](int64_t from, int64_t count) {
      const Elements all = elements(b, from, count);
      together_.push_back({&b, from, all.master, part_of_range(b, from, count, all, step)});
    });
  } else if (resident > 0) {
    untouched_.each_updated(b, begin, resident, [&](int64_t from, int64_t count) {
      update_stored(device, b, from, count, elements(b, from, count), step);
    });
  }
  windows_.each(b, [&](int64_t from, int64_t count, Elements& e) {
    e.grad = gradients_.part(b, from, count);
    untouched_.each_updated(b, from, count, [&](int64_t at, int64_t n) {
      update_stored(device, b, at, n, part_of(e, at - from, n), step);
    });
  });
  host_.each(b, [this, &b, step](Stream& on, int64_t from, int64_t count, const Elements& e) {
    const std::vector<Tensor> wide = host_.wide();
    update_stored({on, wide}, b, from, count, e, step);
  });
}

void ElementUpdates::finish(const OptimizerStep& step) {
  // Parts of one call have all a 16-bit copy, or none.
  std::vector<ElementPart> parts[kUpdateRules + 1][2];
  for (const Together& t : together_)
    if (!t.part.runs.empty())
      parts[static_cast<int>(t.bucket->kind.rule.rule)][t.part.elements.low.defined()].push_back(t.part);
  for (int i = 0; i <= kUpdateRules; ++i)
    for (const std::vector<ElementPart>& some : parts[i])
      if (!some.empty())
        optimizer_of(static_cast<UpdateRule>(i)).update_parts(c_.compute, some, rules_.optimizer);
  for (const Together& t : together_) average_.follow(*t.bucket, t.from, t.master, step.step);
  together_.clear();
  host_.finish();
}

}  // namespace ltrain
