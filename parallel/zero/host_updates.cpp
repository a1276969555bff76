#include "parallel/zero/host_updates.h"

#include <algorithm>

#include "kernels/meta/placement_rules.h"

namespace ltrain {

HostUpdates::HostUpdates(const StoreContext& context, const ParameterLayout& layout,
                         const OptimizerStates& states, const GradientReducer& gradients,
                         OffloadAccess& access, const OffloadSettings& settings)
    : c_(context),
      layout_(layout),
      states_(states),
      gradients_(gradients),
      access_(access),
      on_(settings.host_update && settings.fraction > 0),
      elements_(settings.window) {
  LT_CHECK(!on_ || settings.params == 0,
           "expected weights on the device with updates on the host, got {} of them offloaded",
           settings.params);
}

void HostUpdates::lay_out(size_t wide) {
  if (!on_) return;
  int64_t most = 0;
  for (const Bucket& b : layout_.buckets())
    if (b.kind.rule.trains()) most = std::max(most, layout_.stored_count(b) - states_.resident(b));
  elements_ = std::min(elements_, most);
  for (Window& w : windows_) {
    w.gradients = access_.take_states(elements_ * dtype_size(c_.precision.grad));
    w.weights = access_.take_states(elements_ * dtype_size(c_.precision.compute));
  }
  for (size_t i = 0; i < wide; ++i)
    wide_.emplace_back(access_.take_states(elements_ * dtype_size(c_.precision.wide())),
                       c_.meta() ? c_.compute.meta()->new_record("window of states on the host") : nullptr);
}

/// A tensor like `like` at an offset of host memory. On meta it has the same record: its placement is that of
/// the device's.
Tensor HostUpdates::in_host_memory(Tensor like, int64_t offset) const {
  if (c_.meta()) return like;
  like.data = access_.states->at(offset);
  like.device = DeviceKind::cpu;
  return like;
}

std::vector<Tensor> HostUpdates::wide() const {
  std::vector<Tensor> out;
  for (const auto& [offset, record] : wide_) {
    Tensor t;
    t.dtype = c_.precision.wide();
    t.shape = {elements_};
    t.record = record;
    if (c_.meta()) t.device = DeviceKind::meta;
    out.push_back(in_host_memory(t, offset));
  }
  return out;
}

/// Sends a window's gradients to the host, and weights that are their own master.
Elements HostUpdates::bring(const Bucket& b, int64_t from, int64_t n) {
  Stream& moves = access_.states->stream();
  if (!begun_) moves.wait(c_.compute.record());  // gradients and their norm are ready
  begun_ = true;
  const Window& w = windows_[next_++ % std::size(windows_)];
  Elements e;
  states_.show(b, from, n, e);
  e.grad = gradients_.part(b, from, n);
  access_.states->store(e.grad, w.gradients);
  e.grad = in_host_memory(e.grad, w.gradients);
  const bool masters = states_.has_master(b);
  Tensor& weights = masters ? e.low : e.master;
  current_ = {weights, w.weights, {}};
  if (!masters) access_.states->store(weights, w.weights);
  weights = in_host_memory(weights, w.weights);
  const int64_t at = from - layout_.stored_begin(b);
  const auto state = [&](int s) {
    Tensor t = states_.state(b, s, at, n);
    if (!c_.meta()) t.device = DeviceKind::cpu;
    return t;
  };
  if (masters) e.master = state(0);
  for (size_t m = 0; m < states_.moments(b); ++m) e.states.push_back(state(static_cast<int>(m) + masters));
  access_.states->host_stream().wait(moves.record());
  return e;
}

/// Sends back the weights of the window before. Those of this one follow the next window's gradients, which
/// would otherwise wait for them.
void HostUpdates::note_updated() {
  send_back();
  current_.updated = access_.states->host_stream().record();
  waiting_ = current_;
}

void HostUpdates::send_back() {
  if (!waiting_) return;
  access_.states->stream().wait(waiting_->updated);
  access_.states->fetch(waiting_->weights, waiting_->offset);
  waiting_.reset();
}

void HostUpdates::wait() noexcept {
  if (!on_ || c_.meta()) return;
  try {
    access_.states->synchronize();
  } catch (...) {  // whoever waits next gets it again
  }
}

void HostUpdates::finish() {
  send_back();
  if (begun_) c_.compute.wait(access_.states->stream().record());
  begun_ = false;
}

}  // namespace ltrain
