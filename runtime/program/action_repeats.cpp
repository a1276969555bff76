#include "runtime/program/action_repeats.h"

#include <algorithm>
#include <set>

namespace ltrain {

using pipeline::Action;
using pipeline::ActionKind;

std::vector<char> ActionRepeats::that_run(const pipeline::Schedule& s, int rank) {
  std::vector<char> runs(static_cast<size_t>(s.micros));
  runs.front() = runs.back() = true;
  std::set<std::pair<ActionKind, int>> seen;
  for (const Action& a : s.order[static_cast<size_t>(rank)])
    if (a.micro > 0 && a.micro + 1 < s.micros && seen.insert({a.kind, a.stage}).second)
      runs[static_cast<size_t>(a.micro)] = true;
  return runs;
}

bool ActionRepeats::worthwhile(const Step& step, const pipeline::Schedule& s, int rank) {
  const std::vector<char> runs = that_run(s, rank);
  const auto all = std::count(runs.begin(), runs.end(), true);
  if (all == static_cast<std::ptrdiff_t>(runs.size()) || step.fp8 || step.offloaded || s.has_pairs(rank))
    return false;
  // Each stage must run its micro-batches in order, and the gradients of all stages must be written before
  // those of one stage are complete (ParameterStore::replayed).
  std::map<std::pair<int, int>, int> next;  // next micro-batch, by stage and whether it is a forward
  std::set<int> begun;
  for (const Action& a : s.order[static_cast<size_t>(rank)]) {
    const bool forward = a.kind == ActionKind::forward;
    if (forward || a.gives_gradient())
      if (next[{a.stage, forward}]++ != a.micro) return false;
    if (ends(a) && a.micro == 0) begun.insert(a.stage);
    // The last stage's forward completes the head's gradients.
    const bool completes = !forward || a.stage + 1 == s.stages();
    if (completes && a.micro + 1 == s.micros && static_cast<int>(begun.size()) < s.chunks) return false;
  }
  return true;
}

ActionRepeats::ActionRepeats(const pipeline::Schedule& s, int rank, Step& step, MetaMemory& memory)
    : step_(step), memory_(memory), runs_(that_run(s, rank)), stages_to_begin_(s.chunks) {
  std::set<std::string> between;  // names of link streams
  for (const Link& link : step.groups.links) between.insert(link.group.communicator().name());
  for (Stream* stream : step.groups.streams())
    if (!between.count(stream->name())) streams_.push_back(stream);
}

bool ActionRepeats::ends(const Action& a) {
  return a.kind == ActionKind::backward || a.kind == ActionKind::backward_weight;
}

bool ActionRepeats::idle(const std::vector<Stream*>& streams) const {
  return std::all_of(streams.begin(), streams.end(),
                     [&](const Stream* s) { return s->clock <= step_.compute.clock; });
}

/// Leaves in `mine` only the tensors that the next action of the micro-batch uses.
void ActionRepeats::finish(const Action& a, Slots& mine, int out) {
  if (out >= 0) mine[static_cast<size_t>(out)] = -1;
  std::erase(mine, -1);
  if (!ends(a)) return;
  if (!mine.empty()) throw Impossible();  // a tensor outlives the micro-batch
  slots_.erase({a.stage, a.micro});
}

void ActionRepeats::find_runs(std::vector<Request>& requests, int first_slot) {
  const size_t count = requests.size();
  std::vector<size_t> released(count, count), allocated;  // indexes of requests; by request, by slot
  for (size_t i = 0; i < count; ++i) {
    if (requests[i].slot < 0) {
      allocated.push_back(i);
    } else if (requests[i].slot >= first_slot) {
      released[allocated[static_cast<size_t>(requests[i].slot - first_slot)]] = i;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    Request& first = requests[i];
    if (first.slot >= 0) continue;
    size_t last = released[i];
    int slots = 0;
    int64_t bytes = 0, live = 0, most = 0;
    for (size_t k = i; k <= last && last < count; ++k) {
      const Request& r = requests[k];
      const size_t of = r.slot < 0            ? k
                        : r.slot < first_slot ? 0
                                              : allocated[static_cast<size_t>(r.slot - first_slot)];
      if (r.slot >= 0 && (r.slot < first_slot || of < i)) last = count;  // releases what was there before
      if (last == count) break;
      last = std::max(last, released[of]);
      live += r.slot < 0 ? r.bytes : -requests[of].bytes;
      if (r.slot < 0) ++slots, bytes += r.bytes;
      most = std::max(most, live);
    }
    if (last == count) continue;
    first.run = static_cast<int>(last - i) + 1, first.run_slots = slots;
    first.run_bytes = bytes, first.run_live = most;
  }
}

Tensor ActionRepeats::repeat(const Action& a, Tensor in) {
  const auto at = noted_.find({static_cast<int>(a.kind), a.stage});
  if (at == noted_.end()) throw Impossible();
  const Noted& n = at->second;
  if (!idle(n.streams)) throw Impossible();
  Slots& mine = slots(a);
  if (in.defined()) mine.push_back(in.record->offset);
  for (size_t i = 0; i < n.requests.size(); ++i) {
    const Request& r = n.requests[i];
    if (r.run > 0 && memory_.below_peak(r.run_bytes, r.run_live)) {
      mine.resize(mine.size() + static_cast<size_t>(r.run_slots), -1);
      i += static_cast<size_t>(r.run) - 1;
    } else if (r.slot < 0) {
      mine.push_back(memory_.repeat(r.kind, r.bytes));
    } else {
      int64_t& given = mine[static_cast<size_t>(r.slot)];
      memory_.end_repeat(given);
      given = -1;
    }
  }
  step_.compute.clock += n.seconds;
  step_.compute.meta()->repeat(n.work);
  for (const auto& [axes, seconds] : n.waits) step_.compute.add_wait(axes, seconds);
  Tensor out;
  if (n.out >= 0) out = memory_.tensor_at(mine[static_cast<size_t>(n.out)], n.out_dtype, n.out_shape, n.how);
  finish(a, mine, n.out);
  return out;
}

void ActionRepeats::begin(const Action& a, Tensor in) {
  if (!notes(a)) return;
  if (in.defined()) slots(a).push_back(in.record->offset);
  begun_ = step_.compute.clock;
  waited_ = step_.compute.waited();
  const MetaTrace& trace = *step_.compute.meta();
  work_ = {trace.entries().size(), 0, trace.model_flops()};
  clocks_.clear();
  for (const Stream* s : streams_) clocks_.push_back(s->clock);
  requests_.clear();
  memory_.watch(&requests_);
}

void ActionRepeats::end(const Action& a, Tensor out) {
  memory_.watch(nullptr);
  // Once each stage has written its gradients, the store stops waiting for micro-batches that will not run.
  if (ends(a) && a.micro == 0 && --stages_to_begin_ == 0)
    step_.params.replayed(std::count(runs_.begin(), runs_.end(), false));
  if (!notes(a)) return;
  Noted& n = noted_[{static_cast<int>(a.kind), a.stage}] = {};
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i]->clock == clocks_[i]) continue;
    n.streams.push_back(streams_[i]);
    if (clocks_[i] > begun_) throw Impossible();
  }
  if (!idle(n.streams)) throw Impossible();
  n.seconds = step_.compute.clock - begun_;
  const MetaTrace& trace = *step_.compute.meta();
  n.work = {work_.first, trace.entries().size(), trace.model_flops() - work_.model_flops};
  for (const auto& [axes, seconds] : step_.compute.waited())
    if (const double more = seconds - waited_[axes]; more > 0) n.waits.emplace_back(axes, more);
  Slots& mine = slots(a);
  const int before = static_cast<int>(mine.size());
  std::map<int64_t, int> at;  // slots by their offsets
  for (size_t i = 0; i < mine.size(); ++i) at[mine[i]] = static_cast<int>(i);
  for (const MetaMemory::Request& r : requests_) {
    if (!r.release) {
      at[r.offset] = static_cast<int>(mine.size());
      mine.push_back(r.offset);
      n.requests.push_back({-1, r.kind, r.bytes});
      continue;
    }
    const auto slot = at.find(r.offset);
    if (slot == at.end()) throw Impossible();  // the tensor belongs to another micro-batch
    n.requests.push_back({slot->second});
    mine[static_cast<size_t>(slot->second)] = -1;
    at.erase(slot);
  }
  find_runs(n.requests, before);
  if (out.defined()) {
    const auto slot = at.find(out.record->offset);
    if (slot == at.end()) throw Impossible();
    n.out = slot->second;
    n.out_shape = out.shape;
    n.out_dtype = out.dtype;
    n.how = *out.record;
  }
  finish(a, mine, n.out);
}

}  // namespace ltrain
