// The step's side of the parameters: gathering values, reducing gradients, their norm.
#include <algorithm>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "parallel/zero/parameter_store.h"

namespace ltrain {
namespace {

/// Reductions under way before the first is waited for, with ZeRO-2 and 3: what their buffers cost.
constexpr size_t kInFlight = 2;

}  // namespace

void ParameterStore::begin_step(int64_t micros, int64_t step) {
  micros_ = micros;
  step_ = step;
  fetch_ahead();
  for (Unit& u : units_) {
    u.touched = false;
    if (u.grad_record) {
      u.grad_record->zero = true;
      u.grad_record->place = Placements{};
    }
  }
  for (Bucket& b : buckets_) {
    b.pending = static_cast<int64_t>(b.units.size()) * (layout_.sharding.shards_gradients() ? 1 : micros);
    if (!b.kind.rule.trains()) b.pending = 0;
    b.reductions = 0;
    b.done = b.summed = Event();
  }
}

void ParameterStore::gather(int index) {
  Bucket& b = buckets_[index];
  if (b.value.defined()) return;
  b.value = memory_->allocate(MemoryKind::communication, fmt::format("gathered parameters, bucket {}", index),
                              layout_.precision.compute, {b.padded});
  const Group& g = shard_group(b);
  if (g.size() > 1) {
    g.stream->wait(compute_->record());
    if (b.offloaded >= 0) {
      b.fetched = memory_->allocate(MemoryKind::communication,
                                    fmt::format("parameters from outside, bucket {}", index),
                                    layout_.precision.compute, {b.piece});
      fetch_values(b, b.fetched);
      g.stream->wait(b.done);
    }
    g.comm->all_gather(*g.stream, b.value, b.offloaded >= 0 ? b.fetched : b.value_piece);
    b.done = g.stream->record();
  } else if (b.offloaded >= 0) {
    fetch_values(b, b.value);
  } else {
    cast(*compute_, b.value, b.value_piece);
    b.done = Event();
  }
  b.gathering = true;
}

void ParameterStore::gather_segment(int segment, int next) {
  if (!layout_.sharding.shards_weights()) return;
  const auto each = [&](int which, auto f) {
    for (size_t i = 0; i < buckets_.size(); ++i)
      if (buckets_[i].segment == which) f(static_cast<int>(i));
  };
  each(segment, [&](int i) { gather(i); });
  if (next >= 0) each(next, [&](int i) { gather(i); });
  each(segment, [&](int i) {
    Bucket& b = buckets_[i];
    if (!b.gathering) return;
    compute_->wait(b.done);
    b.gathering = false;
    if (b.fetched.defined()) memory_->release(b.fetched);
    if (!compute_->meta()) return;
    for (Axis a : kEachGradientAxis)
      place_require(*compute_, "using a layer", b.value, a,
                    b.kind.cut.has(a) ? Placement::S(0) : Placement::R());
    for (int u : b.units)
      place_unit(*units_[u].value_record, kGradientAxes.without(b.kind.cut), Placement::R());
  });
}

void ParameterStore::release_segment(int segment) {
  if (!layout_.sharding.shards_weights()) return;
  for (Bucket& b : buckets_) {
    if (b.segment != segment || !b.value.defined()) continue;
    if (b.gathering) compute_->wait(b.done);  // fetched and not used
    b.gathering = false;
    if (b.fetched.defined()) memory_->release(b.fetched);
    memory_->release(b.value);
    if (!compute_->meta()) continue;
    for (int u : b.units) place_unit(*units_[u].value_record, sharding_axes(b.kind), Placement::S(0));
  }
}

GradBuffer ParameterStore::accumulate(int id, int n) {
  Unit& u = units_[parameters_[id].unit];
  LT_CHECK(u.first == id && u.count == n, "gradients are written by whole units, not {} of {}", n, u.count);
  Bucket& b = buckets_[u.bucket];
  if (!b.grad.defined()) {
    if (pending_.size() >= kInFlight) settle(kInFlight - 1);
    b.grad = memory_->allocate(MemoryKind::gradients,
                               fmt::format("gradients of a micro-batch, bucket {}", u.bucket),
                               layout_.precision.grad, {b.padded});
    for (int i : b.units) {
      units_[i].touched = false;
      if (units_[i].grad_record) units_[i].grad_record->zero = true;
    }
  }
  if (widens_gradients()) return accumulate_wide(u, n);
  const bool accumulate = u.touched;
  u.touched = true;
  return {grad(id, n), accumulate};
}

/// What is there is widened, added to, and rounded again when the micro-batch has made its last contribution.
GradBuffer ParameterStore::accumulate_wide(Unit& u, int n) {
  const Tensor sum = grad(u.first, n);
  bool accumulate = true;
  if (!u.wide.defined()) {
    u.wide = memory_->allocate(MemoryKind::gradients, "a gradient before it is rounded",
                               layout_.precision.wide(), sum.shape);
    accumulate = u.touched;
  }
  Tensor to = u.wide;
  to.record = sum.record;
  if (accumulate && !u.adding) cast(*compute_, to, sum);
  u.touched = u.adding = true;
  return {to, accumulate};
}

void ParameterStore::grad_ready(int id) {
  Unit& u = units_[parameters_[id].unit];
  Bucket& b = buckets_[u.bucket];
  LT_CHECK(b.pending > 0, "gradient of {} completed twice", parameters_[id].spec.name);
  if (u.wide.defined()) {
    const Tensor sum = grad(u.first, u.count);
    Tensor from = u.wide;
    from.record = sum.record;
    cast(*compute_, sum, from);
    memory_->release(u.wide);
    u.wide = Tensor();
    u.adding = false;
  }
  if (--b.pending == 0) reduce(u.bucket);
}

/// Padding between and after units takes part in the sums: keep it zero.
void ParameterStore::clear_padding(Bucket& b) {
  if (compute_->meta()) return;
  int64_t end = 0;
  // A split backward contributes to norms and to matmuls at different times: the first contributions of one
  // micro-batch and the last of another may complete a bucket before some unit has had any.
  const auto clear = [&](int64_t from, int64_t to) {
    if (to > from) fill_zero(*compute_, b.grad.flat(from, {to - from}));
  };
  for (int u : b.units) {
    const Parameter &first = parameters_[units_[u].first],
                    &last = parameters_[units_[u].first + units_[u].count - 1];
    if (!units_[u].touched) continue;
    clear(end, first.offset);
    end = last.offset + last.spec.shape.elements();
  }
  clear(end, b.padded);
}

/// On meta: the bucket's gradient lies as those of its units do, which must all lie as their kind says.
void ParameterStore::collect(Bucket& b) {
  if (!compute_->meta()) return;
  int shown = -1;
  for (int i : b.units) {
    const Unit& u = units_[i];
    if (!u.touched) continue;
    if (shown < 0) shown = i;
    Tensor t = b.grad;
    t.record = u.grad_record;
    const ParameterSpec& spec = parameters_[u.first].spec;
    for (Axis a : kTensorAxes)
      place_require(*compute_, "completing a gradient", t, a,
                    b.kind.sum.has(a) ? Placement::P() : spec.place[a]);
    for (Axis a : kEachGradientAxis)
      place_require(*compute_, "completing a gradient", t, a,
                    b.kind.cut.has(a) ? spec.place[a] : Placement::P());
  }
  const TensorRecord& unit = *units_[shown].grad_record;
  b.grad.record->name = unit.name;
  b.grad.record->place = unit.place;
  b.grad.record->made_partial = unit.made_partial;
  b.grad.record->zero = false;
  b.grad.record->written = true;
  place_set(*compute_, b.grad, b.kind.cut, Placement::S(0));
  if (b.kind.copied) {
    place_set(*compute_, b.grad, Axis::tensor, Placement::P());
    b.grad.record->copies = groups_->copies.size();
  }
  if (b.kind.tied) place_set(*compute_, b.grad, Axis::pipeline, Placement::P());
}

/// On meta: summed over its copies, a part is one of the tensor axis again.
void ParameterStore::place_as_part(Bucket& b) {
  place_require(*compute_, "sum over copies", b.grad, Axis::tensor, Placement::R());
  place_set(*compute_, b.grad, Axis::tensor, Placement::S(0));
  b.grad.record->copies = 0;
}

/// Nobody else has anything to add to the gradients of the bucket, nor are they moved.
bool ParameterStore::alone(const Bucket& b) const {
  return !layout_.sharding.shards_gradients() && shard_group(b).size() == 1 &&
         replicate_group(b).size() == 1 && !b.kind.sum.bits && !b.kind.copied;
}

void ParameterStore::replayed(int64_t micros) {
  LT_CHECK(!layout_.sharding.shards_gradients(), "captured work on pieces of gradients");
  for (Unit& u : units_) u.touched = true;
  for (Bucket& b : buckets_)
    if (b.kind.rule.trains()) b.pending -= micros * static_cast<int64_t>(b.units.size());
}

void ParameterStore::end_reductions() { gather_reduced(); }

void ParameterStore::reduce(int index) {
  Bucket& b = buckets_[index];
  const Group& g = shard_group(b);
  collect(b);
  if (groups_->gradient.size() > 1 || b.kind.sum.bits || b.kind.copied || b.kind.tied ||
      layout_.sharding.shards_gradients())
    clear_padding(b);
  if (alone(b)) return;
  g.stream->wait(compute_->record());
  if (b.kind.sum.bits) {  // on the stream that the group is used from
    const Group& t = groups_->spanning(b.kind.sum);
    t.stream->wait(compute_->record());
    t.comm->all_reduce(*t.stream, b.grad);
    g.stream->wait(t.stream->record());
  }
  if (b.kind.copied) {
    const Group& c = groups_->copies;
    c.stream->wait(compute_->record());
    c.comm->all_reduce(*c.stream, b.grad);
    g.stream->wait(c.stream->record());
    if (compute_->meta())  // the same on the copies, another part on the others
      place_as_part(b);
  }
  if (!sums_gradients(b) || rounds_tied(b)) {  // its moment is what ranks sum, or stages sum first
    b.done = g.stream->record();
    return;
  }
  const Tensor piece = b.grad.flat(piece_begin(b), {b.piece});
  const bool two_levels = replicate_group(b).size() > 1;
  const bool round = rounded_.defined() && g.size() > 1;
  const Tensor sent = round ? rounded_.flat(0, {b.padded}) : b.grad;
  const Tensor got = sent.flat(piece_begin(b), {b.piece});
  if (round) cast(*g.stream, sent, b.grad);
  if (layout_.reduce_int8 && is_compressed(b)) {
    compressed_all_reduce(b, b.grad, 1, {}, !layout_.sharding.shards_optimizer());
  } else if (g.size() > 1 && (layout_.sharding.shards_optimizer() || two_levels)) {
    g.comm->reduce_scatter(*g.stream, got, sent);
    if (round) cast(*g.stream, piece, got);
  } else if (g.size() > 1) {
    g.comm->all_reduce(*g.stream, sent);
    if (round) cast(*g.stream, b.grad, sent);
  }
  b.done = g.stream->record();
  if (two_levels && !layout_.sharding.shards_gradients()) {
    gather_reduced();  // the bucket before, whose second level had the time of this one's first
    sum_replicas(b, piece, b.done);
    if (!layout_.sharding.shards_optimizer()) summed_ = index;
  }
  if (!layout_.sharding.shards_gradients()) return;
  pending_.push_back({index, b.grad, b.done});
  b.grad = Tensor();
  b.pending = static_cast<int64_t>(b.units.size());
}

/// The second level: sums a piece that `ready` says is summed inside.
void ParameterStore::sum_replicas(Bucket& b, Tensor piece, Event ready) {
  const Group& g = replicate_group(b);
  if (g.size() == 1) return;
  g.stream->wait(ready);
  g.comm->all_reduce(*g.stream, piece);
  b.summed = g.stream->record();
}

/// Two levels without ZeRO: gathers the bucket that is summed.
void ParameterStore::gather_reduced() {
  if (summed_ < 0) return;
  Bucket& b = buckets_[summed_];
  summed_ = -1;
  const Group& g = shard_group(b);
  g.stream->wait(b.summed);
  if (g.size() > 1) g.comm->all_gather(*g.stream, b.grad, b.grad.flat(piece_begin(b), {b.piece}));
  b.done = g.stream->record();
}

/// ZeRO-2 and 3: adds reduced gradients to this rank's pieces until `keep` reductions are under way.
void ParameterStore::settle(size_t keep) {
  while (pending_.size() > keep) {
    Pending p = pending_.front();
    pending_.erase(pending_.begin());
    Bucket& b = buckets_[p.bucket];
    compute_->wait(p.done);
    const Tensor piece = p.grad.flat(piece_begin(b), {b.piece});
    if (b.reductions > 0) {
      add_to(*compute_, b.grad_piece, piece);
    } else {
      cast(*compute_, b.grad_piece, piece);
    }
    memory_->release(p.grad);
    // Once a step: what goes between nodes does not grow with accumulation.
    if (++b.reductions == micros_) sum_replicas(b, b.grad_piece, compute_->record());
  }
}

void ParameterStore::finish_gradients() {
  settle(0);
  gather_reduced();
  const Group& tied = groups_->tied;
  for (Bucket& b : buckets_) {
    if (!b.kind.rule.trains()) continue;
    const int64_t left =
        layout_.sharding.shards_gradients() ? static_cast<int64_t>(b.units.size()) - b.pending : b.pending;
    LT_CHECK(left == 0 && (!layout_.sharding.shards_gradients() || b.reductions == micros_),
             "a backward left gradients of a bucket incomplete");
    compute_->wait(b.done);
    compute_->wait(b.summed);
    if (!b.kind.tied) continue;
    // After the sum over data: what crosses the pipeline is a piece, not the whole table.
    const Tensor mine = layout_.sharding.shards_gradients() ? b.grad_piece
                        : layout_.sharding.shards_optimizer() && !rounds_tied(b)
                            ? b.grad.flat(piece_begin(b), {b.piece})
                            : b.grad;
    tied.stream->wait(compute_->record());
    tied.comm->all_reduce(*tied.stream, mine);
    compute_->wait(tied.stream->record());
    if (!rounds_tied(b)) continue;
    const Group& g = shard_group(b);
    g.stream->wait(compute_->record());
    compressed_all_reduce(b, b.grad, 1, {}, !layout_.sharding.shards_optimizer());
    compute_->wait(g.stream->record());
  }
  mask_gradients();
  for (Bucket& b : buckets_) release_segment(b.segment);
}

void ParameterStore::add_grad_squares(Tensor squares) {
  // Every rank sums what it owns, replicated gradients or not: the same bits with every stage of ZeRO.
  for (Bucket& b : buckets_) {
    if (!first_copy(b) || !moves(b)) continue;
    if (!sums_gradients(b)) {
      add_own_squares(b, squares.flat(b.segment, {1}));
      continue;
    }
    const int64_t begin = own_begin(b) - (layout_.sharding.shards_gradients() ? piece_begin(b) : 0);
    Tensor own = (layout_.sharding.shards_gradients() ? b.grad_piece : b.grad).flat(begin, {b.own});
    if (compute_->meta()) {  // a cut of what more have: equal, or the first has all of it
      AxisSet cut;
      if (!layout_.sharding.shards_optimizer() || groups_->replicate.size() > 1) cut = kGradientAxes;
      for (Axis a : kTensorAxes) cut = cut | a;
      own = place_apart(*compute_, own, own.record->name);
      for (int i = 0; i < kAxisCount; ++i)
        if (const Axis a = static_cast<Axis>(i); cut.has(a) && own.record->place[a] == Placement::R())
          place_set(*compute_, own, a, Placement::S(0));
    }
    sum_squares(*compute_, squares.flat(b.segment, {1}), own);
  }
}

}  // namespace ltrain
