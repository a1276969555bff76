#include "parallel/zero/state_windows.h"

#include <algorithm>
#include <numeric>

namespace ltrain {
namespace {

constexpr int64_t kSlots = 3;  // slots of the ring: one in use, one being fetched, one being written back

}  // namespace

StateWindows::StateWindows(const StoreContext& context, const ParameterLayout& layout, const Weights& weights,
                           const OptimizerStates& states, const OffloadedWeights& offloaded,
                           const OffloadSettings& settings)
    : c_(context),
      layout_(layout),
      weights_(weights),
      states_(states),
      offloaded_(offloaded),
      elements_(settings.window),
      moves_states_(!settings.host_update),
      skips_(settings.skip_untouched) {}

void StateWindows::allocate() {
  if (!moves_states_) return;
  int64_t most_states = 0, most_weights = 0;
  size_t moments = 0;
  for (const Bucket& b : layout_.buckets()) {
    if (!b.kind.rule.trains() || !optimizer_of(b.kind.rule.rule).by_element()) continue;
    most_states = std::max(most_states, layout_.stored_count(b) - states_.resident(b));
    moments = std::max(moments, states_.moments(b));
    if (offloaded_.has(b)) most_weights = std::max(most_weights, layout_.stored_count(b));
    list(b);
  }
  if (windows_.empty()) return;
  order_.resize(windows_.size());
  std::iota(order_.begin(), order_.end(), 0);
  ring_.resize(kSlots);
  const auto slot_of = [&](const char* what, DType type, int64_t n) {
    return c_.memory.allocate(MemoryKind::optimizer, what, type, {std::min(elements_, n)});
  };
  if (most_states > 0)
    for (Slot& slot : ring_) {
      const char* what = "ring of offloaded states";
      if (c_.precision.has_master()) slot.states.push_back(slot_of(what, c_.precision.master, most_states));
      for (size_t s = 0; s < moments; ++s)
        slot.states.push_back(slot_of(what, c_.precision.state, most_states));
    }
  if (most_weights > 0)
    for (Slot& slot : ring_)
      slot.weights = slot_of("ring of offloaded parameters", c_.precision.compute, most_weights);
}

/// Lists windows of offloaded weights, and of elements with offloaded states.
void StateWindows::list(const Bucket& b) {
  const auto add = [&](int64_t begin, int64_t end, bool states) {
    for (int64_t at = begin; at < end; at += elements_)
      windows_.push_back({b.index, layout_.stored_begin(b) + at, std::min(elements_, end - at), states});
  };
  if (offloaded_.has(b)) add(0, states_.resident(b), false);
  add(states_.resident(b), layout_.stored_count(b), true);
}

/// Starts to fetch a window. The previous contents of its slot have been written back by then.
void StateWindows::fetch(size_t index) {
  if (index >= order_.size()) return;
  const Window& w = windows_[order_[index]];
  const Bucket& b = layout_.bucket(w.bucket);
  Slot& slot = ring_[index % ring_.size()];
  const int64_t at = w.from - layout_.stored_begin(b);
  for (int s = 0; w.states && s < states_.count(b); ++s) {
    const Tensor t = slot.states[static_cast<size_t>(s)].flat(0, {w.n});
    layout_.place_bucket(c_.compute, b, t, layout_.stores_pieces(b));
    states_.fetch(b, s, at, t);
    moved_ += t.bytes();
  }
  if (w.states) slot.fetched = states_.stream().record();
  if (!offloaded_.has(b)) return;
  const Tensor weights = slot.weights.flat(0, {w.n});
  weights_.place_like_held(b, weights);
  offloaded_.fetch(b, at, weights);
  moved_ += weights.bytes();
  slot.weights_fetched = offloaded_.stream().record();
}

void StateWindows::fetch_ahead() {
  if (windows_.empty() || ahead_ || skips_) return;
  ahead_ = true;
  fetch_first();
}

void StateWindows::begin_update(const UntouchedExperts& untouched) {
  next_ = 0;
  if (windows_.empty() || !skips_) return;
  order_.clear();
  for (size_t i = 0; i < windows_.size(); ++i) {
    const Window& w = windows_[i];
    bool updated = false;
    untouched.each_updated(layout_.bucket(w.bucket), w.from, w.n, [&](int64_t, int64_t) { updated = true; });
    if (updated) order_.push_back(i);
  }
  fetch_first();
}

void StateWindows::fetch_first() {
  // Set-up, loading and the EMA write weights and states directly, on the compute stream.
  const Event written = c_.compute.record();
  if (!ring_[0].states.empty()) states_.stream().wait(written);
  if (ring_[0].weights.defined()) offloaded_.stream().wait(written);
  for (size_t i = 0; i < ring_.size(); ++i) fetch(i);
}

Elements StateWindows::arrived(const Bucket& b) {
  const Window& w = windows_[order_[next_]];
  const Slot& slot = this->slot();
  const bool low = c_.precision.has_master();
  Elements e;
  states_.show(b, w.from, w.n, e);
  if (w.states) {
    c_.compute.wait(slot.fetched);
    size_t s = 0;
    if (low) e.master = slot.states[s++].flat(0, {w.n});
    for (size_t m = 0; m < states_.moments(b); ++m) e.states.push_back(slot.states[s++].flat(0, {w.n}));
  }
  if (offloaded_.has(b)) {
    c_.compute.wait(slot.weights_fetched);
    (low ? e.low : e.master) = slot.weights.flat(0, {w.n});
  }
  return e;
}

void StateWindows::leave(const Bucket& b, const Elements& e) {
  const Window& w = windows_[order_[next_]];
  const Slot& slot = this->slot();
  const int64_t at = w.from - layout_.stored_begin(b);
  const Event updated = c_.compute.record();
  if (w.states) {
    states_.stream().wait(updated);
    for (int i = 0; i < states_.count(b); ++i) {
      const Tensor t = slot.states[static_cast<size_t>(i)].flat(0, {w.n});
      states_.store(b, i, at, t);
      moved_ += t.bytes();
    }
  }
  if (offloaded_.has(b)) {
    offloaded_.stream().wait(updated);
    const Tensor& weights = c_.precision.has_master() ? e.low : e.master;
    offloaded_.store(b, at, weights);
    moved_ += weights.bytes();
  }
  fetch(next_ + ring_.size());
}

void StateWindows::pass(const Bucket& b) {
  for (; is_of(b); ++next_) fetch(next_ + ring_.size());
}

}  // namespace ltrain
