#include "parallel/zero/weights.h"

#include <algorithm>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/optimizer/fake_quantize.h"
#include "kernels/optimizer/sparsify.h"
#include "kernels/tensor/micro_batch_overlap.h"

namespace ltrain {

Weights::Weights(const StoreContext& context, const ParameterLayout& layout, OffloadedWeights& offloaded,
                 const QuantizationSettings& quantization)
    : c_(context),
      layout_(layout),
      offloaded_(offloaded),
      quantization_(quantization),
      states_(layout.buckets().size()),
      records_(layout.units().size()) {}

void Weights::allocate(const Bucket& b) {
  if (offloaded_.choose(b)) return;  // laid out after all are chosen
  const bool sharded = b.shards_weights;
  Tensor& t = sharded ? at(b).piece : at(b).whole;
  if (b.kind.nf4) {
    Tensor& absmax = sharded ? at(b).absmax_piece : at(b).absmax;
    const int64_t n = sharded ? b.piece : b.padded;
    const auto make = [&](const char* what, DType type, int64_t elements) {
      const Tensor made = c_.memory.allocate(MemoryKind::parameters,
                                             fmt::format("{}, bucket {}", what, b.index), type, {elements});
      layout_.place_bucket(c_.compute, b, made, sharded && layout_.stores_pieces(b));
      return made;
    };
    t = make("parameters in NF4", DType::u8, n / kNf4Pair);
    absmax = make("magnitudes of NF4", DType::f32, n / kNf4Block);
    return;
  }
  t = c_.memory.allocate(MemoryKind::parameters, fmt::format("parameters, bucket {}", b.index),
                         c_.precision.compute, {sharded ? b.piece : b.padded});
  layout_.place_bucket(c_.compute, b, t, sharded && layout_.stores_pieces(b));
}

void Weights::lay_out_offloaded() {
  offloaded_.reserve();
  for (const Bucket& b : layout_.buckets())
    if (offloaded_.has(b)) at(b).piece = offloaded_.piece(b);
}

void Weights::make_records() {
  if (!c_.meta()) return;
  for (size_t i = 0; i < records_.size(); ++i) {
    const auto& u = layout_.units()[i];
    const ParameterSpec& spec = layout_.parameter(u.first).spec;
    TensorRecord* record = c_.compute.meta()->new_record(spec.name);
    record->written = true;
    for (int a = 0; a < kAxisCount; ++a)
      if (c_.groups.mesh.degree[a] > 1) record->place.axis[a] = spec.place.axis[a];
    records_[i] = record;
  }
  for (const Bucket& b : layout_.buckets())
    if (b.shards_weights || comes_later(b)) place_units(b, Placement::S(0));
}

bool Weights::comes_later(const Bucket& b) const {
  return layout_.gathers_updates(b) && b.kind.rule.trains() && layout_.shard_group(b).size() > 1;
}

/// Sets the placement of the bucket's units on the axes of pieces; for full weights, on all axes of the
/// gradient sum except those that shard the tensor itself.
void Weights::place_units(const Bucket& b, Placement p) {
  if (!c_.meta()) return;
  const AxisSet axes =
      p == Placement::R() ? kGradientAxes.without(b.kind.cut) : layout_.sharding_axes(b.kind);
  for (int u : b.units) layout_.place_unit(*records_[static_cast<size_t>(u)], axes, p);
}

Tensor Weights::view(int id, int n) const {
  const auto& p = layout_.parameter(id);
  const Tensor& whole = states_[static_cast<size_t>(p.bucket)].whole;
  LT_CHECK(whole.defined(), "expected a gathered segment for the use of {}, got a released one", p.spec.name);
  return joined_view(layout_, whole, records_[static_cast<size_t>(p.unit)], id, n);
}

Nf4Matrix Weights::nf4_view(int id, int n) const {
  const auto& p = layout_.parameter(id);
  const State& s = states_[static_cast<size_t>(p.bucket)];
  LT_CHECK(s.absmax.defined(), "expected {} in NF4, and its segment gathered; got neither or one of them",
           p.spec.name);
  int64_t rows = 0;
  for (int i = id; i < id + n; ++i) rows += layout_.parameter(i).spec.shape[0];
  TensorRecord* const record = records_[static_cast<size_t>(p.unit)];
  const auto part = [&](const Tensor& of, int64_t per) {
    Tensor t = of.flat(p.offset / per, {rows, p.spec.shape[1] / per});
    if (record) t.record = record;
    return t;
  };
  return {part(s.whole, kNf4Pair), part(s.absmax, kNf4Block)};
}

void Weights::gather_nf4(const Bucket& b) {
  State& s = at(b);
  const Group& g = layout_.shard_group(b);
  s.gathering = true;
  s.done = AsyncHandle();
  if (g.size() == 1) {
    s.whole = s.piece;
    s.absmax = s.absmax_piece;
    return;
  }
  const auto room = [&](DType type, int64_t n) {
    return c_.memory.allocate(MemoryKind::communication,
                              fmt::format("gathered parameters, bucket {}", b.index), type, {n});
  };
  s.whole = room(DType::u8, b.padded / kNf4Pair);
  s.absmax = room(DType::f32, b.padded / kNf4Block);
  s.done = g.start(c_.compute, [&](Stream& on) {
    g.all_gather(on, s.whole, s.piece);
    g.all_gather(on, s.absmax, s.absmax_piece);
  });
}

void Weights::gather(const Bucket& b) {
  State& s = at(b);
  s.users |= 1u << MicroBatchOverlap::side(c_.compute);
  if (s.whole.defined()) return;
  if (b.kind.nf4) return gather_nf4(b);
  s.whole =
      c_.memory.allocate(MemoryKind::communication, fmt::format("gathered parameters, bucket {}", b.index),
                         c_.precision.compute, {b.padded});
  const Group& g = layout_.shard_group(b);
  const bool offloaded = offloaded_.has(b);
  if (g.size() > 1) {
    s.done = g.start(c_.compute, [&](Stream& on) {
      if (offloaded) {
        s.fetched = c_.memory.allocate(MemoryKind::communication,
                                       fmt::format("parameters from outside, bucket {}", b.index),
                                       c_.precision.compute, {b.piece});
        fetch(b, s.fetched);
        s.done.wait(on);
      }
      g.all_gather(on, s.whole, offloaded ? s.fetched : s.piece);
    });
  } else if (offloaded) {
    fetch(b, s.whole);
  } else {
    cast(c_.compute, s.whole, s.piece);
    s.done = AsyncHandle();
  }
  s.gathering = true;
}

/// State::done: the pieces have arrived.
void Weights::fetch(const Bucket& b, const Tensor& to) {
  offloaded_.stream().wait(c_.compute.record());  // the compute stream may have used the memory
  place_like_held(b, to);
  offloaded_.fetch(b, 0, to);
  at(b).done = AsyncHandle(offloaded_.stream().record());
}

void Weights::place_like_held(const Bucket& b, const Tensor& t) const {
  if (!c_.meta()) return;
  t.record->place = at(b).piece.record->place;
  t.record->written = true;
}

/// Buckets in the order of their use in a forward, the order of segments.
std::vector<const Bucket*> Weights::in_order() const {
  std::vector<const Bucket*> all;
  for (const Bucket& b : layout_.buckets()) all.push_back(&b);
  std::stable_sort(all.begin(), all.end(),
                   [](const Bucket* a, const Bucket* b) { return a->segment < b->segment; });
  return all;
}

void Weights::start_gathers() {
  for (const Bucket* b : in_order()) {
    if (!comes_later(*b)) continue;
    end_writing(*b);
    publish(*b);
    at(*b).gathering = true;
  }
  complete_ = true;
}

void Weights::begin_step(bool always) {
  if (c_.sharding.keeps_gathered()) {
    keeping_ = true;
    for (const Bucket* b : in_order()) gather(*b);
    return;
  }
  if (stale_ || always) gather_first();
  renew(always);
}

void Weights::renew(bool always) {
  if (c_.sharding.keeps_gathered()) return;
  if (stale_ || always) start_gathers();
  stale_ = false;
}

/// Gathers that the first layers wait for, before those of all layers with full weights.
void Weights::gather_first() {
  const std::vector<const Bucket*> all = in_order();
  const auto whole = [&](const Bucket* b) { return comes_later(*b); };
  const auto first = std::find_if(all.begin(), all.end(), whole);
  if (first == all.end()) return;
  for (auto b = all.begin(); b != first; ++b) {
    if (!(*b)->shards_weights) continue;
    gather(**b);
    at(**b).users = 0;  // a pass that uses it becomes its user
  }
}

void Weights::begin_replayed_step() {
  complete_ = true;
  stale_ = false;
}

void Weights::complete() {
  if (!complete_) start_gathers();
  wait_all();
}

void Weights::wait_all() {
  for (const Bucket& b : layout_.buckets())
    if (layout_.gathers_updates(b)) wait_gathered(b);
}

void Weights::end_step() {
  wait_all();
  keeping_ = false;
  for (const Bucket& b : layout_.buckets()) release_segment(b.segment);
}

void Weights::wait_gathered(const Bucket& b) {
  State& s = at(b);
  if (!s.gathering) return;
  const double before = c_.compute.clock;
  s.done.wait_hidden(c_.compute);  // started a layer ago, or with the step
  s.gathering = false;
  if (layout_.gathers_updates(b) || keeping_) waited_for_updates_ += c_.compute.clock - before;
  if (s.fetched.defined()) c_.memory.release(s.fetched);
  if (!c_.meta()) return;
  for (Axis a : kEachGradientAxis)
    place_require(c_.compute, "using a layer", s.whole, a,
                  b.kind.cut.has(a) ? Placement::S(0) : Placement::R());
  place_units(b, Placement::R());
}

void Weights::end_update() {
  require("end of the update", true);
  stale_ = true;
  complete_ = false;
  for (const Bucket& b : layout_.buckets())
    if (comes_later(b)) place_units(b, Placement::S(0));
}

void Weights::note_complete() { complete_ = true; }

void Weights::gather_segment(int segment, int next) {
  const auto each = [&](int which, auto f) {
    for (const Bucket& b : layout_.buckets())
      if (b.segment == which) f(b);
  };
  const auto gather_sharded = [&](const Bucket& b) {
    if (b.shards_weights) gather(b);
  };
  each(segment, gather_sharded);
  if (next >= 0) each(next, gather_sharded);
  each(segment, [&](const Bucket& b) { wait_gathered(b); });
}

void Weights::release_segment(int segment) {
  if (keeping_) return;
  for (const Bucket& b : layout_.buckets()) {
    State& s = at(b);
    if (b.segment != segment || !b.shards_weights || !s.whole.defined()) continue;
    s.users &= c_.compute.overlap ? ~(1u << MicroBatchOverlap::side(c_.compute)) : 0;
    if (s.users) continue;
    if (s.gathering) s.done.wait_hidden(c_.compute);  // gathered, but not used
    s.gathering = false;
    if (s.fetched.defined()) c_.memory.release(s.fetched);
    if (b.kind.nf4 && layout_.shard_group(b).size() == 1) {
      s.whole = s.absmax = {};  // the piece itself
    } else {
      c_.memory.release(s.whole);
      if (s.absmax.defined()) c_.memory.release(s.absmax);
    }
    place_units(b, Placement::S(0));
  }
}

const Tensor& Weights::held(const Bucket& b) const { return b.shards_weights ? at(b).piece : at(b).whole; }

const Tensor& Weights::held_absmax(const Bucket& b) const {
  return b.shards_weights ? at(b).absmax_piece : at(b).absmax;
}

Tensor Weights::updated(const Bucket& b) const {
  if (b.shards_weights) return at(b).piece;
  return at(b).whole.flat(layout_.stored_begin(b), {layout_.stored_count(b)});
}

Tensor Weights::part(const Bucket& b, int64_t from, int64_t n) const {
  if (b.shards_weights) return at(b).piece.flat(from - layout_.stored_begin(b), {n});
  return at(b).whole.flat(from, {n});
}

Nf4Matrix Weights::nf4_part(const Bucket& b, int64_t from, int64_t n) const {
  const int64_t at = b.shards_weights ? from - layout_.stored_begin(b) : from;
  return {held(b).flat(at / kNf4Pair, {n / kNf4Pair}), held_absmax(b).flat(at / kNf4Block, {n / kNf4Block})};
}

void Weights::derive(const Bucket& b, const Tensor& from) const {
  LT_CHECK(!offloaded_.has(b),
           "expected weights of bucket {}, made from master weights, on the device, got offloaded ones",
           b.index);
  if (b.kind.masked) return masked_copy(c_.compute, updated(b), from);
  fake_quantize(c_.compute, updated(b), from, quantization_.weights, b.kind.group,
                quantization_.type.value_or(c_.precision.compute));
}

void Weights::begin_writing(const Bucket& b) {
  if (c_.meta() && layout_.gathers_updates(b))
    place_set(c_.compute, at(b).whole, c_.groups.mesh.shard,
              Placement::S(0));  // also for padding
}

void Weights::end_writing(const Bucket& b) {
  layout_.place_bucket(c_.compute, b, held(b), layout_.stores_pieces(b));
}

void Weights::publish(const Bucket& b) {
  const Group& g = layout_.shard_group(b);
  if (!layout_.gathers_updates(b) || g.size() == 1) return;
  const auto gathered = [&](const Tensor& whole, int64_t per) {
    return g.start_all_gather(c_.compute, whole, whole.flat(layout_.piece_begin(b) / per, {b.piece / per}));
  };
  at(b).done = gathered(at(b).whole, b.kind.nf4 ? kNf4Pair : 1);
  if (b.kind.nf4) at(b).done = gathered(at(b).absmax, kNf4Block);
}

void Weights::wait_published() {
  const Group& g = c_.groups.shard;
  const auto& all = layout_.buckets();
  const auto gathers = [&](const Bucket& b) { return layout_.gathers_updates(b); };
  if (g.size() > 1 && std::any_of(all.begin(), all.end(), gathers))
    g.wait(c_.compute);  // the expert group runs on the same stream
}

void Weights::require(std::string_view when, bool pieces) const {
  if (!c_.meta()) return;
  for (const Bucket& b : layout_.buckets()) {
    const bool cut = b.shards_weights || (pieces && comes_later(b));
    for (Axis a : kEachGradientAxis)
      place_require(
          c_.compute, when, held(b), a,
          b.kind.cut.has(a) || (cut && c_.groups.mesh.shard.has(a)) ? Placement::S(0) : Placement::R());
  }
}

}  // namespace ltrain
