#include "parallel/zero/gradient_reducer.h"

#include <algorithm>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

/// Reductions in flight before the first is waited for, with ZeRO-2 and 3; limits their buffers.
constexpr size_t kInFlight = 2;

}  // namespace

GradientReducer::GradientReducer(const StoreContext& context, const ParameterLayout& layout,
                                 const StepRules& rules, CompressedAllReduce& compressed)
    : c_(context),
      layout_(layout),
      rules_(rules),
      compressed_(compressed),
      states_(layout.buckets().size()),
      units_(layout.units().size()) {}

void GradientReducer::allocate(const Bucket& b) {
  const bool sharded = c_.sharding.shards_gradients();
  Tensor& t = sharded ? at(b).piece : at(b).all;
  t = c_.memory.allocate(MemoryKind::gradients, fmt::format("gradients, bucket {}", b.index),
                         c_.precision.grad, {sharded ? b.piece : b.padded});
  layout_.place_bucket(c_.compute, b, t, sharded && layout_.stores_pieces(b));
}

void GradientReducer::allocate_rounded() {
  int64_t widest = 0, widest_piece = 0;
  for (const Bucket& b : layout_.buckets()) {
    if (layout_.shard_group(b).size() > 1) widest = std::max(widest, b.padded);
    if (layout_.replicate_group(b).size() > 1) widest_piece = std::max(widest_piece, b.piece);
  }
  const auto room = [&](const char* name, int64_t elements) {
    return elements > 0 ? c_.memory.allocate(MemoryKind::communication, name, DType::bf16, {elements})
                        : Tensor();
  };
  rounded_ = room("gradients in bf16", widest);
  rounded_piece_ = room("a piece of gradients in bf16", widest_piece);
}

void GradientReducer::make_records() {
  if (!c_.meta()) return;
  for (size_t i = 0; i < units_.size(); ++i)
    units_[i].record =
        c_.compute.meta()->new_record("gradient of " + layout_.parameter(layout_.units()[i].first).spec.name);
}

void GradientReducer::each_tensor(const std::function<void(const Tensor&)>& f) const {
  for (const State& s : states_) {
    f(s.all);
    f(s.piece);
  }
}

void GradientReducer::begin_step() {
  for (UnitState& u : units_) {
    u.touched = false;
    if (u.record) {
      u.record->zero = true;
      u.record->place = Placements{};
    }
  }
  for (const Bucket& b : layout_.buckets()) {
    State& s = at(b);
    s.pending = static_cast<int64_t>(b.units.size()) * (c_.sharding.shards_gradients() ? 1 : rules_.micros);
    if (!b.kind.rule.trains()) s.pending = 0;
    s.reductions = 0;
    s.done = s.summed = AsyncHandle();
  }
}

Tensor GradientReducer::view(int id, int n) const {
  const auto& p = layout_.parameter(id);
  const Tensor& all = states_[static_cast<size_t>(p.bucket)].all;
  LT_CHECK(all.defined(), "expected a held gradient of {}, got none at this time", p.spec.name);
  return joined_view(layout_, all, units_[static_cast<size_t>(p.unit)].record, id, n);
}

GradBuffer GradientReducer::accumulate(int id, int n) {
  const auto& declared = layout_.unit_of(id);
  LT_CHECK(declared.first == id && declared.count == n,
           "expected a gradient of a full unit of {} parameters, got {}", declared.count, n);
  const Bucket& b = layout_.bucket(declared.bucket);
  if (!b.kind.rule.trains()) return accumulate_frozen(unit(layout_.parameter(id).unit), id, n);
  State& s = at(b);
  if (!s.all.defined()) {
    if (pending_.size() >= kInFlight) finish_sums(kInFlight - 1);
    s.all = c_.memory.allocate(MemoryKind::gradients,
                               fmt::format("gradients of a micro-batch, bucket {}", b.index),
                               c_.precision.grad, {b.padded});
    for (int i : b.units) {
      unit(i).touched = false;
      if (unit(i).record) unit(i).record->zero = true;
    }
  }
  UnitState& u = unit(layout_.parameter(id).unit);
  if (widens()) return accumulate_wide(u, id, n);
  const bool accumulate = u.touched;
  u.touched = true;
  return {view(id, n), accumulate};
}

/// Widens the old gradient, adds to it, and rounds it again after the last contribution of the micro-batch.
GradBuffer GradientReducer::accumulate_wide(UnitState& u, int id, int n) {
  const Tensor sum = view(id, n);
  bool accumulate = true;
  if (!u.wide.defined()) {
    u.wide = c_.memory.allocate(MemoryKind::gradients, "a gradient before it is rounded", c_.precision.wide(),
                                sum.shape);
    accumulate = u.touched;
  }
  Tensor to = u.wide;
  to.record = sum.record;
  if (accumulate && !u.adding) cast(c_.compute, to, sum);
  u.touched = u.adding = true;
  return {to, accumulate};
}

/// Kernels of norms and biases compute a gradient beside what goes on to the layers before: it goes to memory
/// that nobody reads.
GradBuffer GradientReducer::accumulate_frozen(UnitState& u, int id, int n) {
  const bool accumulate = u.wide.defined();
  if (!accumulate) {
    Shape shape = layout_.parameter(id).spec.shape;
    for (int i = id + 1; i < id + n; ++i) shape.dims[0] += layout_.parameter(i).spec.shape[0];
    u.wide = c_.memory.allocate(MemoryKind::temporaries, "gradient of a frozen parameter",
                                c_.precision.wide(), shape);
  }
  return {u.wide, accumulate};
}

void GradientReducer::ready(int id) {
  const auto& p = layout_.parameter(id);
  UnitState& u = unit(p.unit);
  const Bucket& b = layout_.bucket(p.bucket);
  if (!b.kind.rule.trains()) {
    if (u.wide.defined()) c_.memory.release(u.wide);
    u.wide = Tensor();
    return;
  }
  State& s = at(b);
  LT_CHECK(s.pending > 0,
           "expected one completion of the gradient of {} for each micro-batch, got one too many",
           p.spec.name);
  if (u.wide.defined()) {
    const auto& declared = layout_.unit_of(id);
    const Tensor sum = view(declared.first, declared.count);
    Tensor from = u.wide;
    from.record = sum.record;
    cast(c_.compute, sum, from);
    c_.memory.release(u.wide);
    u.wide = Tensor();
    u.adding = false;
  }
  if (--s.pending == 0) reduce(b);
}

/// Clears padding between and after units, which takes part in the sums.
void GradientReducer::clear_padding(const Bucket& b) {
  if (c_.meta()) return;
  int64_t end = 0;
  // Units without a contribution are cleared, too. They occur with a split backward, which contributes to
  // norms and to matmuls at different times: first contributions of one micro-batch and last ones of another
  // may complete a bucket before every unit has one.
  const auto clear = [&](int64_t from, int64_t to) {
    if (to > from) fill_zero(c_.compute, at(b).all.flat(from, {to - from}));
  };
  for (int u : b.units) {
    const auto& declared = layout_.units()[static_cast<size_t>(u)];
    const auto &first = layout_.parameter(declared.first),
               &last = layout_.parameter(declared.first + declared.count - 1);
    if (!unit(u).touched) continue;
    clear(end, first.offset);
    end = last.offset + last.spec.shape.elements();
  }
  clear(end, b.padded);
}

/// On meta: gives the bucket's gradient the placement of its units, which must all have the placement of
/// their kind.
void GradientReducer::collect(const Bucket& b) {
  if (!c_.meta()) return;
  const Tensor& all = at(b).all;
  int shown = -1;
  for (int i : b.units) {
    const UnitState& u = unit(i);
    if (!u.touched) continue;
    if (shown < 0) shown = i;
    Tensor t = all;
    t.record = u.record;
    const ParameterSpec& spec = layout_.parameter(layout_.units()[static_cast<size_t>(i)].first).spec;
    for (Axis a : kTensorAxes)
      place_require(c_.compute, "completing a gradient", t, a,
                    b.kind.sum.has(a) ? Placement::P() : spec.place[a]);
    for (Axis a : kEachGradientAxis)
      place_require(c_.compute, "completing a gradient", t, a,
                    b.kind.cut.has(a) ? spec.place[a] : Placement::P());
  }
  const TensorRecord& of_unit = *unit(shown).record;
  all.record->name = of_unit.name;
  all.record->place = of_unit.place;
  all.record->made_partial = of_unit.made_partial;
  all.record->zero = false;
  all.record->written = true;
  place_set(c_.compute, all, b.kind.cut, Placement::S(0));
  if (b.kind.copied) {
    place_set(c_.compute, all, Axis::tensor, Placement::P());
    all.record->copies = c_.groups.copies.size();
  }
  if (b.kind.tied) place_set(c_.compute, all, Axis::pipeline, Placement::P());
}

/// On meta: after the sum over copies, a part is again a part of the tensor axis.
void GradientReducer::place_as_part(const Bucket& b) {
  const Tensor& all = at(b).all;
  place_require(c_.compute, "sum over copies", all, Axis::tensor, Placement::R());
  place_set(c_.compute, all, Axis::tensor, Placement::S(0));
  all.record->copies = 0;
}

/// True if no other rank adds to the gradients of the bucket, and they are not moved.
bool GradientReducer::alone(const Bucket& b) const {
  return !c_.sharding.shards_gradients() && layout_.shard_group(b).size() == 1 &&
         layout_.replicate_group(b).size() == 1 && !b.kind.sum.bits && !b.kind.copied;
}

void GradientReducer::replayed(int64_t micros) {
  LT_CHECK(!c_.sharding.shards_gradients(), "expected full gradients for captured work, got sharded ones");
  for (UnitState& u : units_) u.touched = true;
  for (const Bucket& b : layout_.buckets())
    if (b.kind.rule.trains()) at(b).pending -= micros * static_cast<int64_t>(b.units.size());
}

GradientReducer::BucketSum GradientReducer::sum_of(const Bucket& b) const {
  if (!rules_.sums_gradients(b) || rounds_tied(b)) return BucketSum::later;
  if (compressed_.compresses_gradients(b)) return BucketSum::compressed;
  if (layout_.shard_group(b).size() == 1) return BucketSum::none;
  const bool pieces = c_.sharding.shards_optimizer() || layout_.replicate_group(b).size() > 1;
  return pieces ? BucketSum::pieces : BucketSum::whole;
}

/// Sums over ranks that hold the bucket's parameters, or copies of them, and have other rows or heads.
void GradientReducer::sum_replicated(Stream& on, const Bucket& b) {
  const Tensor& all = at(b).all;
  if (b.kind.sum.bits) c_.groups.spanning(b.kind.sum).start_all_reduce(c_.compute, all).wait(on);
  if (!b.kind.copied) return;
  c_.groups.copies.start_all_reduce(c_.compute, all).wait(on);
  if (c_.meta()) place_as_part(b);  // equal on the copies, another part on the other ranks
}

void GradientReducer::sum_level(Stream& on, const Bucket& b, BucketSum how) {
  const Group& g = layout_.shard_group(b);
  const Tensor& all = at(b).all;
  if (how == BucketSum::compressed) compressed_.run(on, b, all, 1, {}, !c_.sharding.shards_optimizer());
  if (how != BucketSum::pieces && how != BucketSum::whole) return;
  const bool rounds = rounded_.defined();
  const Tensor sent = rounds ? rounded_.flat(0, {b.padded}) : all;
  if (rounds) cast(on, sent, all);
  if (how == BucketSum::pieces) {
    const auto piece_of = [&](const Tensor& t) { return t.flat(layout_.piece_begin(b), {b.piece}); };
    g.reduce_scatter(on, piece_of(sent), sent);
    if (rounds) cast(on, piece_of(all), piece_of(sent));
  } else {
    g.all_reduce(on, sent);
    if (rounds) cast(on, all, sent);
  }
}

void GradientReducer::reduce(const Bucket& b) {
  State& s = at(b);
  const bool sharded = c_.sharding.shards_gradients();
  collect(b);
  if (c_.groups.gradient.size() > 1 || b.kind.sum.bits || b.kind.copied || b.kind.tied || sharded)
    clear_padding(b);
  if (alone(b)) return;
  const BucketSum how = sum_of(b);
  s.done = layout_.shard_group(b).start(c_.compute, [&](Stream& on) {
    sum_replicated(on, b);
    sum_level(on, b, how);
  });
  if (how == BucketSum::later) return;
  if (sharded) {
    pending_.push_back({b.index, s.all, s.done});
    s.all = Tensor();
    s.pending = static_cast<int64_t>(b.units.size());
  } else if (layout_.replicate_group(b).size() > 1) {
    gather_reduced();  // Finish the previous bucket: its second level overlapped this bucket's first.
    sum_replicas(b, s.all.flat(layout_.piece_begin(b), {b.piece}), s.done);
    if (!c_.sharding.shards_optimizer()) summed_ = b.index;
  }
}

/// Second level: sums a piece over replicas after `ready`, its sum within the shard group.
void GradientReducer::sum_replicas(const Bucket& b, Tensor piece, const AsyncHandle& ready) {
  const Group& g = layout_.replicate_group(b);
  if (g.size() == 1) return;
  at(b).summed = g.start(ready, [&](Stream& on) {
    if (!rounded_piece_.defined()) return g.all_reduce(on, piece);
    const Tensor sent = rounded_piece_.flat(0, {b.piece});
    cast(on, sent, piece);
    g.all_reduce(on, sent);
    cast(on, piece, sent);
  });
}

/// Two levels without ZeRO: gathers the summed bucket.
void GradientReducer::gather_reduced() {
  if (summed_ < 0) return;
  const Bucket& b = layout_.bucket(summed_);
  State& s = at(b);
  summed_ = -1;
  const Group& g = layout_.shard_group(b);
  s.done = g.start(s.summed, [&](Stream& on) {
    if (g.size() > 1) g.all_gather(on, s.all, s.all.flat(layout_.piece_begin(b), {b.piece}));
  });
}

/// ZeRO-2 and 3: adds reduced gradients to this rank's pieces until `keep` reductions are in flight.
void GradientReducer::finish_sums(size_t keep) {
  while (pending_.size() > keep) {
    Pending p = pending_.front();
    pending_.erase(pending_.begin());
    const Bucket& b = layout_.bucket(p.bucket);
    State& s = at(b);
    p.done.wait(c_.compute);
    const Tensor piece = p.grad.flat(layout_.piece_begin(b), {b.piece});
    if (s.reductions > 0) {
      add_to(c_.compute, s.piece, piece);
    } else {
      cast(c_.compute, s.piece, piece);
    }
    c_.memory.release(p.grad);
    // Once a step, so that traffic between nodes does not grow with accumulation.
    if (++s.reductions == rules_.micros) sum_replicas(b, s.piece, AsyncHandle(c_.compute.record()));
  }
}

void GradientReducer::finish() {
  finish_sums(0);
  gather_reduced();
  const bool sharded = c_.sharding.shards_gradients();
  const Group& tied = c_.groups.tied;
  for (const Bucket& b : layout_.buckets()) {
    if (!b.kind.rule.trains()) continue;
    State& s = at(b);
    const int64_t left = sharded ? static_cast<int64_t>(b.units.size()) - s.pending : s.pending;
    LT_CHECK(left == 0 && (!sharded || s.reductions == rules_.micros),
             "expected complete gradients of bucket {} after the last backward, got {} pending units and {} "
             "of {} reductions",
             b.index, left, s.reductions, rules_.micros);
    s.done.wait(c_.compute);
    s.summed.wait(c_.compute);
    if (!b.kind.tied) continue;
    // After the sum over data, so that only a piece of the table crosses the pipeline.
    const Tensor mine = rounds_tied(b) ? s.all : stored(b);
    tied.all_reduce(c_.compute, mine);
    if (!rounds_tied(b)) continue;
    const auto sum = [&](Stream& on) {
      compressed_.run(on, b, s.all, 1, {}, !c_.sharding.shards_optimizer());
    };
    layout_.shard_group(b).start(c_.compute, sum).wait(c_.compute);
  }
}

Tensor GradientReducer::part(const Bucket& b, int64_t from, int64_t n) const {
  const State& s = at(b);
  return c_.sharding.shards_gradients() ? s.piece.flat(from - layout_.stored_begin(b), {n})
                                        : s.all.flat(from, {n});
}

Tensor GradientReducer::owned(const Bucket& b) const {
  Tensor own = part(b, layout_.own_begin(b), b.own);
  if (!c_.meta()) return own;
  // A slice of data that several ranks hold: equal on all, or full on the first.
  AxisSet cut;
  if (!c_.sharding.shards_optimizer() || c_.groups.replicate.size() > 1) cut = kGradientAxes;
  for (Axis a : kTensorAxes) cut = cut | a;
  own = place_apart(c_.compute, own);
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); cut.has(a) && own.record->place[a] == Placement::R())
      place_set(c_.compute, own, a, Placement::S(0));
  return own;
}

Tensor GradientReducer::gather(const Bucket& b) {
  const Group& g = layout_.shard_group(b);
  const State& s = at(b);
  const Tensor mine = stored(b);
  Tensor whole = s.all;
  if (c_.sharding.shards_gradients()) {
    whole = c_.memory.allocate(MemoryKind::communication, "directions of Muon", s.piece.dtype, {b.padded});
    if (c_.meta()) whole.record->place = s.piece.record->place;
  }
  if (g.size() > 1 && c_.sharding.shards_optimizer()) {
    g.all_gather(c_.compute, whole, mine);
  } else if (c_.sharding.shards_gradients()) {
    cast(c_.compute, whole, mine);
  }
  return whole;
}

void GradientReducer::scatter(const Bucket& b, Tensor whole) {
  const Group& g = layout_.shard_group(b);
  const Tensor mine = stored(b);
  if (g.size() > 1) {
    if (c_.meta()) place_set(c_.compute, whole, g.axes(), Placement::P());
    if (c_.sharding.shards_optimizer())
      g.reduce_scatter(c_.compute, mine, whole);
    else
      g.all_reduce(c_.compute, whole);
  } else if (c_.sharding.shards_gradients()) {
    cast(c_.compute, mine, whole);
  }
  if (c_.sharding.shards_gradients()) c_.memory.release(whole);
}

}  // namespace ltrain
