// Updates of one element at a time, window by window where states cannot be used as they lie: those in
// offload memory
//  come and go through a ring of buffers, those of 16 bits are widened and rounded again. Windows do
// not change what an element becomes.
#include <algorithm>
#include <cmath>

#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/optimizer/round_stochastic.h"
#include "kernels/tensor/rng.h"
#include "parallel/zero/parameter_store.h"

namespace ltrain {
namespace {

constexpr int64_t kSlots = 3;  // of the ring: one computed on, one on its way in, one on its way out

}  // namespace

int ParameterStore::state_count(const Bucket& b) const {
  return static_cast<int>(b.moments.size()) + layout_.precision.has_master();
}

Tensor ParameterStore::resident_state(const Bucket& b, int state) const {
  const int masters = layout_.precision.has_master();
  return state < masters ? b.master : b.moments[static_cast<size_t>(state - masters)];
}

Tensor ParameterStore::state_at(const Bucket& b, int state, int64_t at, int64_t n) const {
  const Tensor resident = resident_state(b, state);
  if (at < b.resident) return resident.flat(at, {n});
  LT_CHECK(b.resident + n <= stored_count(b), "states of {} elements beyond a bucket", n);
  Tensor slow = resident;
  slow.shape = {n};
  slow.data = compute_->meta() ? nullptr : layout_.slow->at(offload_offset(b, state, at));
  return slow;
}

int64_t ParameterStore::offload_offset(const Bucket& b, int state, int64_t at) const {
  return b.slow[static_cast<size_t>(state)] + (at - b.resident) * dtype_size(resident_state(b, state).dtype);
}

bool ParameterStore::widens_states() const {
  const DType wide = layout_.precision.wide();
  return layout_.precision.master != wide || layout_.precision.state != wide || widens_gradients();
}

void ParameterStore::allocate_windows() {
  if (layout_.reduce_bf16) {
    LT_CHECK(groups_->replicate.size() == 1, "gradients are rounded for a sum on one level");
    int64_t widest = 0;
    for (const Bucket& b : buckets_)
      if (shard_group(b).size() > 1) widest = std::max(widest, b.padded);
    if (widest > 0)
      rounded_ = memory_->allocate(MemoryKind::communication, "gradients in bf16", DType::bf16, {widest});
  }
  int64_t most_slow = 0, most_offloaded = 0, most = 0, bytes = 0;
  size_t states = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& b = buckets_[i];
    if (b.kind.rule.trains() && !optimizer_of(b.kind.rule.rule).by_element()) continue;
    const int64_t slow = stored_count(b) - b.resident;
    most_slow = std::max(most_slow, slow);
    most = std::max(most, stored_count(b));
    states = std::max(states, b.moments.size());
    if (slow > 0)
      for (int s = 0; s < state_count(b); ++s) {
        b.slow.push_back(bytes);
        const int64_t n = slow * dtype_size(resident_state(b, s).dtype);
        bytes += (n + kOffloadBlock - 1) / kOffloadBlock * kOffloadBlock;
      }
    if (!b.kind.rule.trains()) continue;
    if (b.offloaded >= 0) most_offloaded = std::max(most_offloaded, stored_count(b));
    list_windows(static_cast<int>(i));
  }
  offload_bytes_ = bytes;
  const PrecisionPolicy& p = layout_.precision;
  if (!windows_.empty()) ring_.resize(kSlots);
  const auto slot_of = [&](const char* what, DType type, int64_t n) {
    return memory_->allocate(MemoryKind::optimizer, what, type, {std::min(layout_.offload.window, n)});
  };
  if (bytes > 0) {
    LT_CHECK(layout_.slow, "offloaded states without a place for them");
    layout_.slow->reserve(bytes);
    const char* what = "ring of offloaded states";
    for (Slot& slot : ring_) {
      if (p.has_master()) slot.states.push_back(slot_of(what, p.master, most_slow));
      for (size_t s = 0; s < states; ++s) slot.states.push_back(slot_of(what, p.state, most_slow));
    }
  }
  if (most_offloaded > 0)
    for (Slot& slot : ring_) slot.values = slot_of("ring of offloaded parameters", p.compute, most_offloaded);
  if (!widens_states()) return;
  const int64_t n = std::min(layout_.offload.window, most);
  const bool stored = p.master != p.wide() || p.state != p.wide();
  for (size_t s = 0; n > 0 && s < (stored ? states + 1 : 0) + widens_gradients(); ++s)
    wide_.push_back(memory_->allocate(MemoryKind::optimizer, "window of states", p.wide(), {n}));
}

/// What of a bucket comes by windows: values that are away, states of elements that have slow ones.
void ParameterStore::list_windows(int bucket) {
  const Bucket& b = buckets_[static_cast<size_t>(bucket)];
  const auto add = [&](int64_t begin, int64_t end, bool states) {
    for (int64_t at = begin; at < end; at += layout_.offload.window)
      windows_.push_back({bucket, stored_begin(b) + at, std::min(layout_.offload.window, end - at), states});
  };
  if (b.offloaded >= 0) add(0, b.resident, false);
  add(b.resident, stored_count(b), true);
}

/// Asks for what a window has; its slot's last ones have left by then.
void ParameterStore::fetch_window(size_t index) {
  if (index >= windows_.size()) return;
  const Window& w = windows_[index];
  const Bucket& b = buckets_[static_cast<size_t>(w.bucket)];
  Slot& slot = ring_[index % ring_.size()];
  const int64_t at = w.from - stored_begin(b);
  for (int s = 0; w.states && s < state_count(b); ++s) {
    const Tensor t = slot.states[static_cast<size_t>(s)].flat(0, {w.n});
    place_bucket(b, t, layout_.sharding.shards_optimizer() && shard_group(b).size() > 1);
    layout_.slow->fetch(t, offload_offset(b, s, at));
  }
  if (w.states) slot.fetched = layout_.slow->stream().record();
  if (b.offloaded < 0) return;
  const Tensor values = slot.values.flat(0, {w.n});
  layout_.offload_params->fetch(like_values(b, values), b.offloaded + at * dtype_size(values.dtype));
  slot.values_fetched = layout_.offload_params->stream().record();
}

/// The first windows, as early as their step begins.
void ParameterStore::fetch_ahead() {
  if (windows_.empty() || fetched_ahead_) return;
  fetched_ahead_ = true;
  for (size_t i = 0; i < ring_.size(); ++i) fetch_window(i);
}

/// All of [from, from + n) has states as `all` says, in the type that is computed in.
void ParameterStore::update_range(Bucket& b, int64_t from, int64_t n, const Elements& all,
                                  const AdamwArgs& step) {
  const std::vector<int> ids = members(b);
  int64_t first = -1;
  std::vector<ElementRun> runs;  // from `first` on
  for (size_t i = 0, j; i < ids.size(); i = j) {
    const ParameterRule& rule = parameters_[ids[i]].rule;
    for (j = i; j < ids.size() && parameters_[ids[j]].rule == rule;) ++j;
    const int64_t begin = std::max(from, parameters_[ids[i]].offset);
    const int64_t end = std::min(from + n, j < ids.size() ? parameters_[ids[j]].offset : b.padded);
    if (begin >= end) continue;
    if (first < 0) first = begin;
    runs.push_back({end - first, rule.decay, args_of(rule, step)});
  }
  if (!runs.empty())
    optimizer_of(b.kind.rule.rule)
        .update_elements(*compute_, part_of(all, first - from, runs.back().end), runs, layout_.optimizer);
  average(b, from, all.master, step.step);
}

/// Parameters of 16 bits that are all there is of them.
void ParameterStore::round_parameters(Bucket& b, int64_t from, int64_t n, Tensor to, Tensor wide,
                                      int64_t step) {
  const uint64_t seed = layout_.seed + static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15ull;
  for (int id : members(b)) {
    const Parameter& p = parameters_[static_cast<size_t>(id)];
    const int64_t first = std::max(from, p.offset),
                  count = std::min(from + n, p.offset + p.spec.slice.elements()) - first;
    if (count <= 0) continue;
    round_stochastic(*compute_, to.flat(first - from, {count}), wide.flat(first - from, {count}), seed,
                     hash_name("rounding of " + p.spec.name), elements_of(p.spec, first - p.offset));
  }
}

/// As update_range, for states as they are stored.
void ParameterStore::update_stored(Bucket& b, int64_t from, int64_t n, const Elements& stored,
                                   const AdamwArgs& step) {
  if (!widens_states()) return update_range(b, from, n, stored, step);
  const DType wide = layout_.precision.wide();
  const int64_t most = wide_[0].elements();
  for (int64_t at = 0; at < n; at += most) {
    const int64_t some = std::min(most, n - at);
    const Elements r = part_of(stored, at, some);
    Elements w = r;
    size_t used = 0;
    const auto widen = [&](Tensor& t) {
      if (t.dtype == wide) return;
      const Tensor to = wide_[used++].flat(0, {some});
      cast(*compute_, to, t);
      t = to;
    };
    widen(w.master);
    for (Tensor& t : w.states) widen(t);
    widen(w.grad);
    update_range(b, from + at, some, w, step);
    if (r.master.dtype != wide) round_parameters(b, from + at, some, r.master, w.master, step.step);
    for (size_t s = 0; s < r.states.size(); ++s)
      if (r.states[s].dtype != wide) cast(*compute_, r.states[s], w.states[s]);
  }
}

/// Leaves the windows of a bucket that does not move.
void ParameterStore::pass_windows(const Bucket& b) {
  for (;
       next_window_ < windows_.size() && &buckets_[static_cast<size_t>(windows_[next_window_].bucket)] == &b;
       ++next_window_)
    fetch_window(next_window_ + ring_.size());
}

void ParameterStore::update_elements(Bucket& b, const AdamwArgs& step) {
  const int64_t begin = stored_begin(b);
  if (b.coded.first.defined()) {  // one rule, so that blocks are of the bucket
    const ParameterRule& rule = b.kind.rule;
    Elements e = range(b, begin, stored_count(b));
    e.states = {b.coded.first, b.coded.second, b.coded.scales};
    const std::vector<ElementRun> all{{stored_count(b), rule.decay, args_of(rule, step)}};
    optimizer_of(rule.rule).update_elements(*compute_, e, all, layout_.optimizer);
    return average(b, begin, e.master, step.step);
  }
  if (b.resident > 0 && b.offloaded < 0)
    update_stored(b, begin, b.resident, range(b, begin, b.resident), step);
  for (;
       next_window_ < windows_.size() && &buckets_[static_cast<size_t>(windows_[next_window_].bucket)] == &b;
       ++next_window_) {
    const Window& w = windows_[next_window_];
    Slot& slot = ring_[next_window_ % ring_.size()];
    Elements r = range(b, w.from, w.n);
    const bool low = layout_.precision.has_master();
    if (w.states) {
      compute_->wait(slot.fetched);
      size_t s = 0;
      if (low) r.master = slot.states[s++].flat(0, {w.n});
      for (size_t m = 0; m < b.moments.size(); ++m) r.states.push_back(slot.states[s++].flat(0, {w.n}));
    }
    Tensor& values = low ? r.low : r.master;
    if (b.offloaded >= 0) {
      compute_->wait(slot.values_fetched);
      values = slot.values.flat(0, {w.n});
    }
    update_stored(b, w.from, w.n, r, step);
    const Event updated = compute_->record();
    if (w.states) {
      layout_.slow->stream().wait(updated);
      for (int i = 0; i < state_count(b); ++i)
        layout_.slow->store(slot.states[static_cast<size_t>(i)].flat(0, {w.n}),
                            offload_offset(b, i, w.from - begin));
    }
    if (b.offloaded >= 0) {
      layout_.offload_params->stream().wait(updated);
      layout_.offload_params->store(values, b.offloaded + (w.from - begin) * dtype_size(values.dtype));
    }
    fetch_window(next_window_ + ring_.size());
  }
}

void ParameterStore::wait_offloaded() {
  if (offload_bytes_ > 0) layout_.slow->stream().synchronize();
  if (offloaded_bytes_ > 0) layout_.offload_params->stream().synchronize();
}

void ParameterStore::release_offloaded() {
  if (offload_bytes_ > 0) layout_.slow->release();
  if (offloaded_bytes_ > 0) layout_.offload_params->release();
}

/// f(from, n) for parts of `elements` that may be of offload memory.
void ParameterStore::in_parts(int64_t elements, const std::function<void(int64_t, int64_t)>& f) {
  const int64_t most = offload_bytes_ + offloaded_bytes_ > 0 ? kOffloadTouch / 8 : elements;
  for (int64_t at = 0; at < elements; at += most) {
    f(at, std::min(most, elements - at));
    release_offloaded();
  }
}

// ---- the average of weights ----

void ParameterStore::average(Bucket& b, int64_t from, Tensor master, int64_t step) {
  if (!b.average.defined()) return;
  const double t = static_cast<double>(step), decay = std::min(layout_.ema_decay, (1 + t) / (10 + t));
  scale_add(*compute_, b.average.flat(from - stored_begin(b), {master.elements()}), decay, master, 1 - decay);
}

/// The weights of the optimizer, wherever they lie.
void ParameterStore::copy_master(const Bucket& b, Tensor to) {
  const bool masters = layout_.precision.has_master();
  const int64_t resident = masters ? b.resident : to.elements(), slow = to.elements() - resident;
  const Tensor from = masters ? b.master : held(b);
  in_parts(resident, [&](int64_t at, int64_t n) { cast(*compute_, to.flat(at, {n}), from.flat(at, {n})); });
  in_parts(slow, [&](int64_t at, int64_t n) {
    cast(*compute_, to.flat(resident + at, {n}), state_at(b, 0, resident + at, n));
  });
}

void ParameterStore::start_average() {
  wait_offloaded();
  for (const Bucket& b : buckets_)
    if (b.average.defined()) copy_master(b, b.average);
}

Tensor ParameterStore::held(const Bucket& b) const {
  return layout_.sharding.shards_weights() ? b.value_piece : b.value.flat(stored_begin(b), {stored_count(b)});
}

void ParameterStore::use_ema_weights(bool shown) {
  if (layout_.ema_decay <= 0) return;
  wait_offloaded();
  for (Bucket& b : buckets_) {
    const Tensor values = held(b);
    if (layout_.precision.has_master()) {
      if (shown)
        cast(*compute_, values, b.average);
      else
        copy_master(b, values);
    } else {  // they change places, and back
      const int64_t n = values.elements(), most = std::min<int64_t>(n, 1 << 18);
      Tensor between =
          memory_->allocate(MemoryKind::temporaries, "exchange of weights", values.dtype, {most});
      for (int64_t at = 0; at < n; at += most) {
        const Shape some{std::min(most, n - at)};
        const Tensor t = between.flat(0, some), value = values.flat(at, some),
                     mean = b.average.flat(at, some);
        cast(*compute_, t, value);
        cast(*compute_, value, mean);
        cast(*compute_, mean, t);
      }
      memory_->release(between);
    }
    const bool pieces = layout_.sharding.shards_optimizer() && shard_group(b).size() > 1;
    place_bucket(b, b.average, pieces);
    place_bucket(b, layout_.sharding.shards_weights() ? b.value_piece : b.value, pieces);
    release_offloaded();
  }
  for (Bucket& b : buckets_) gather_values(b);
  wait_for_values();
}

}  // namespace ltrain
