#include "parallel/zero/outer_optimizer.h"

#include <algorithm>

#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"

namespace ltrain {

OuterOptimizer::OuterOptimizer(const StoreContext& context, const ParameterLayout& layout, Weights& weights,
                               const OptimizerStates& states, const DilocoSettings& settings)
    : c_(context),
      layout_(layout),
      weights_(weights),
      states_(states),
      settings_(settings),
      buckets_(layout.buckets().size()) {}

void OuterOptimizer::allocate(const Bucket& b) {
  if (!settings_.on() || !b.kind.rule.trains()) return;
  const auto make = [&](const char* what) {
    const Tensor t = c_.memory.allocate(MemoryKind::optimizer, fmt::format("{}, bucket {}", what, b.index),
                                        c_.precision.wide(), {layout_.stored_count(b)});
    layout_.place_bucket(c_.compute, b, t, layout_.stores_pieces(b));
    return t;
  };
  State& s = at(b);
  s.anchor = make("weights at the last synchronization");
  s.momentum = make("outer momentum");
  if (settings_.delay > 0) s.change = make("pseudo-gradient on its way");
}

int64_t OuterOptimizer::block(const Bucket& b) const {
  const bool coded = settings_.on() && settings_.sum == SiteSum::int8 && b.kind.rule.trains();
  return coded ? code_block(Code::int8) * c_.groups.sites.size() : 1;
}

void OuterOptimizer::allocate_codes() {
  int64_t most = 0;
  for (const Bucket& b : layout_.buckets())
    if (at(b).anchor.defined() && block(b) > 1) most = std::max(most, at(b).anchor.elements());
  const int64_t sites = c_.groups.sites.size();
  if (most == 0 || sites == 1) return;
  const DType wide = c_.precision.wide();
  const auto make = [&](const char* what, DType type, int64_t n) {
    return c_.memory.allocate(MemoryKind::communication, what, type, {n});
  };
  sent_ = make("codes sent to sites", DType::u8, coded_bytes(Code::int8, wide, most));
  received_ = make("codes of sites", DType::u8, coded_bytes(Code::int8, wide, most));
  error_ = make("rounding errors of sums over sites", wide, most + most / sites);
}

AsyncHandle OuterOptimizer::start_coded_sum(const Tensor& change) {
  const Group& sites = c_.groups.sites;
  if (sites.size() == 1) return {};
  const int64_t n = change.elements(), piece = n / sites.size();
  const int64_t bytes = coded_bytes(Code::int8, change.dtype, n);
  if (c_.meta()) place_set(c_.compute, change, Axis::replica, Placement::P());
  // On the stream of the sites, one bucket after the other.
  return sites.start(c_.compute, [&](Stream& on) {
    const Tensor errors = error_.flat(0, {n + piece});
    fill_zero(on, errors);
    compressed_all_reduce(on, sites,
                          {.code = Code::int8,
                           .values = change,
                           .sent_error = errors.flat(0, {n}),
                           .sum_error = errors.flat(n, {piece}),
                           .sent = sent_.flat(0, {bytes}),
                           .received = received_.flat(0, {bytes}),
                           .where = {}},
                          1, true);
  });
}

void OuterOptimizer::each_tensor(const std::function<void(const Tensor&)>& f) const {
  for (const State& s : buckets_) {
    f(s.anchor);
    f(s.momentum);
    f(s.change);
  }
}

int OuterOptimizer::fragment(const Bucket& b) const {
  return b.kind.tied ? 0 : static_cast<int>(b.segment % settings_.fragments);
}

void OuterOptimizer::each_of(int fragment, const std::function<void(const Bucket&)>& f) const {
  for (const Bucket& b : layout_.buckets())
    if (at(b).anchor.defined() && this->fragment(b) == fragment) f(b);
}

void OuterOptimizer::start() {
  for (const Bucket& b : layout_.buckets())
    if (at(b).anchor.defined()) states_.copy_master(b, at(b).anchor);
  in_flight_ = -1;
}

void OuterOptimizer::resume(int64_t step, bool in_flight) {
  in_flight_ = in_flight ? settings_.in_flight_after(step) : -1;
}

void OuterOptimizer::wait() const {
  for (const State& s : buckets_) s.sent.wait(c_.compute);
}

void OuterOptimizer::synchronize(int64_t step) {
  const int sends = settings_.sends_after(step), updates = settings_.updates_after(step);
  if (sends >= 0 && settings_.delay > 0) {
    each_of(sends, [&](const Bucket& b) { at(b).sent = send(b, at(b).change); });
    in_flight_ = sends;
  }
  if (updates < 0) return;
  if (in_flight_ == updates) {
    each_of(updates, [&](const Bucket& b) {
      at(b).sent.wait(c_.compute);
      update(b, at(b).change);
    });
  } else {  // no delay, or a run that begins between a difference and its update
    each_of(updates, [&](const Bucket& b) { synchronize_now(b); });
  }
  in_flight_ = -1;
}

void OuterOptimizer::synchronize_now(const Bucket& b) {
  const bool kept = at(b).change.defined();
  Tensor change =
      kept ? at(b).change
           : c_.memory.allocate(MemoryKind::temporaries, fmt::format("pseudo-gradient, bucket {}", b.index),
                                c_.precision.wide(), {at(b).anchor.elements()});
  send(b, change).wait(c_.compute);
  update(b, change);
  if (!kept) c_.memory.release(change);
}

AsyncHandle OuterOptimizer::send(const Bucket& b, const Tensor& change) {
  Stream& s = c_.compute;
  weights_.begin_writing(b);
  const double weight = settings_.weight(c_.groups.mesh.site());
  cast(s, change, at(b).anchor);
  scale_add(s, change, weight, states_.stored_master(b), -weight);
  weights_.end_writing(b);
  return settings_.sum == SiteSum::int8 ? start_coded_sum(change) : c_.groups.start_sum_over_sites(s, change);
}

void OuterOptimizer::update(const Bucket& b, const Tensor& change) {
  Stream& s = c_.compute;
  const State& state = at(b);
  const double share = 1.0 / c_.groups.sites.size(), momentum = settings_.outer_momentum;
  weights_.begin_writing(b);
  const Tensor weights = states_.stored_master(b);
  scale_add(s, state.momentum, momentum, change, share);
  if (settings_.nesterov)
    scale_add(s, change, share, state.momentum, momentum);
  else
    cast(s, change, state.momentum);
  scale_add(s, state.anchor, 1, change, -settings_.outer_lr);
  // The site keeps a share of its own weights.
  if (settings_.merge > 0)
    scale_add(s, weights, settings_.merge, state.anchor, 1 - settings_.merge);
  else
    cast(s, weights, state.anchor);
  if (b.kind.derived())
    weights_.derive(b, weights);
  else if (states_.has_master(b))
    cast(s, weights_.updated(b), weights);
  layout_.place_bucket(s, b, state.anchor, layout_.stores_pieces(b));
  weights_.end_writing(b);
}

}  // namespace ltrain
