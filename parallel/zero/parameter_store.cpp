#include "parallel/zero/parameter_store.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/rng.h"

namespace ltrain {
namespace {

constexpr int64_t kAlign = 16;  // elements: units start on a cache line or more

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// What stays of n elements when a fraction leaves; never nothing, as no allocation is empty.
int64_t resident_part(int64_t n, double fraction) {
  const double stays = std::floor((1 - fraction) * static_cast<double>(n) / kAlign);
  return std::max<int64_t>(kAlign, static_cast<int64_t>(stays) * kAlign);
}

}  // namespace

int ParameterStore::add(std::vector<ParameterSpec> unit) {
  LT_CHECK(buckets_.empty(), "parameters are declared before allocate()");
  Unit u;
  u.first = count();
  u.count = static_cast<int>(unit.size());
  u.segment = segment_;
  for (ParameterSpec& spec : unit) {
    if (spec.slice.global.rank == 0) spec.slice = Slice::whole(spec.shape);
    if (spec.matrix.rank == 0) spec.matrix = spec.slice.global;
    for (const Parameter& p : parameters_)
      LT_CHECK(p.spec.name != spec.name || common_elements(p.spec.slice, spec.slice) == 0,
               "parameter {} declared twice", spec.name);
    parameters_.push_back({std::move(spec), {}, static_cast<int>(units_.size())});
  }
  units_.push_back(u);
  return u.first;
}

int64_t ParameterStore::elements() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.spec.slice.elements();
  return n;
}

int ParameterStore::find(std::string_view name) const {
  for (int i = 0; i < count(); ++i)
    if (parameters_[i].spec.name == name) return i;
  return -1;
}

int64_t ParameterStore::piece_begin(const Bucket& b) const { return shard_group(b).rank() * b.piece; }
int64_t ParameterStore::own_begin(const Bucket& b) const {
  return piece_begin(b) + replicate_group(b).rank() * b.own;
}
int64_t ParameterStore::stored_begin(const Bucket& b) const {
  return layout_.sharding.shards_optimizer() ? piece_begin(b) : 0;
}
int64_t ParameterStore::stored_count(const Bucket& b) const {
  return layout_.sharding.shards_optimizer() ? b.piece : b.padded;
}

ParameterStore::Kind ParameterStore::kind_of(const ParameterSpec& spec) const {
  Kind kind;
  for (int i = 0; i < kAxisCount; ++i) {
    const Axis a = static_cast<Axis>(i);
    if (groups_->size(a) == 1) continue;
    if (!(spec.place[a] == Placement::R())) kind.cut = kind.cut | a;
    if (spec.sum.has(a)) kind.sum = kind.sum | a;
    kind.expert = kind.expert || (kGradientAxes.has(a) && kind.cut.has(a));
  }
  kind.copied = groups_->copies.size() > 1 && spec.copied;
  kind.tied = groups_->tied.size() > 1 && spec.tied_stages;
  return kind;
}

void ParameterStore::fill_buckets() {
  // One bucket is open for each kind. It stays within a segment: stages 2 and 3 complete a bucket once a
  // micro-batch, so its backward must run as one; and the norm is the same to the bit when all stages sum it
  // by the same buckets.
  std::vector<int> open;
  for (int u = static_cast<int>(units_.size()) - 1; u >= 0; --u) {
    Kind kind = kind_of(parameters_[units_[u].first].spec);
    kind.rule = parameters_[units_[u].first].rule;
    if (!optimizer_of(kind.rule.rule).coded_states())  // others may differ from run to run
      kind.rule.lr_scale = 1, kind.rule.decay = true, kind.rule.weight_decay.reset();
    const auto fits = [&](int i) {
      const Bucket& b = buckets_[i];
      return b.kind == kind && b.used < layout_.bucket_elements && !b.kind.tied &&
             b.segment == units_[u].segment;
    };
    int at = -1;
    for (int i : open)
      if (fits(i)) at = i;
    if (at < 0) {
      std::erase_if(open, [&](int i) { return buckets_[i].kind == kind; });
      at = static_cast<int>(buckets_.size());
      open.push_back(at);
      buckets_.emplace_back();
      buckets_.back().kind = kind;
      buckets_.back().segment = units_[u].segment;
    }
    Bucket& b = buckets_[at];
    b.used = round_up(b.used, kAlign);
    for (int id = units_[u].first; id < units_[u].first + units_[u].count; ++id) {
      parameters_[id].bucket = at;
      parameters_[id].offset = b.used;
      b.used += parameters_[id].spec.shape.elements();
    }
    units_[u].bucket = at;
    b.units.push_back(u);
  }
}

static RuleTarget target_of(const ParameterSpec& s) {
  return {s.name, s.slice.global.rank == 2, s.embedding, s.decay, s.router};
}

ParameterRule ParameterStore::rule_with(int id, const OptimizerSettings& optimizer) const {
  return rule_of(optimizer, target_of(parameters_[id].spec));
}

void ParameterStore::choose_rules() {
  for (int id = 0; id < count(); ++id) parameters_[id].rule = rule_with(id, layout_.optimizer);
  for (const Unit& u : units_) {
    const Parameter& first = parameters_[u.first];
    for (int id = u.first; id < u.first + u.count; ++id) {
      const ParameterRule &a = first.rule, &b = parameters_[id].rule;
      const bool coded = optimizer_of(a.rule).coded_states();
      if (a.rule != b.rule || (coded && !(a == b)))
        fail(ExitCode::usage,
             "optimizer.groups: {} has {} and {} has {}{}, and they are parts of one matrix, whose parts "
             "have one "
             "rule; match both",
             first.spec.name, update_rule_name(a.rule), parameters_[id].spec.name, update_rule_name(b.rule),
             coded ? " of other settings" : "");
    }
  }
}

AxisSet ParameterStore::sharding_axes(const Kind& kind) const {
  return groups_->mesh.shard.without(kind.cut);
}

/// On meta: how a bucket's tensor lies. `sharded`: each rank of the inside group has a piece.
void ParameterStore::place_bucket(const Bucket& b, const Tensor& t, bool sharded) const {
  if (!compute_->meta() || !t.defined()) return;
  place_set(*compute_, t, kGradientAxes, Placement::R());
  if (sharded) place_set(*compute_, t, groups_->mesh.shard, Placement::S(0));
  for (Axis a : kTensorAxes) place_set(*compute_, t, a, Placement::R());
  place_set(*compute_, t, b.kind.cut, Placement::S(0));
}

/// On those of `axes` that have several ranks, as a record has one for each.
void ParameterStore::place_unit(TensorRecord& unit, AxisSet axes, Placement p) const {
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); axes.has(a) && groups_->size(a) > 1) unit.place[a] = p;
}

void ParameterStore::allocate(Stream& compute, Memory& memory, const Groups& groups, const Layout& layout) {
  compute_ = &compute;
  memory_ = &memory;
  groups_ = &groups;
  layout_ = layout;
  choose_rules();
  choose_sparse();
  fill_buckets();
  const PrecisionPolicy& p = layout.precision;
  const ShardingPolicy sharding = layout_.sharding;
  int64_t pieces_all = 0, pieces_offloaded = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& b = buckets_[i];
    const int ranks = shard_group(b).size(), copies = replicate_group(b).size();
    const Optimizer& optimizer = optimizer_of(b.kind.rule.rule);
    const bool coded = optimizer.coded_states();
    int64_t unit = coded ? kCodeBlock : kAlign;
    if (is_compressed(b)) unit = std::max(unit, code_block(code_of(b)));
    b.padded = round_up(b.used, unit * ranks * copies);
    b.piece = b.padded / ranks;
    b.own = b.piece / copies;
    const bool pieces = sharding.shards_optimizer() && ranks > 1;  // of what an optimizer has
    const auto make = [&](MemoryKind kind, const char* what, DType type, int64_t n, bool sharded) {
      Tensor t = memory.allocate(kind, fmt::format("{}, bucket {}", what, i), type, {n});
      place_bucket(b, t, sharded);
      return t;
    };
    if (leaves(b, pieces_all, pieces_offloaded)) {
      b.offloaded = offloaded_bytes_;  // laid out below
      offloaded_bytes_ += round_up(b.piece * dtype_size(p.compute), kOffloadBlock);
    } else if (sharding.shards_weights()) {
      b.value_piece = make(MemoryKind::parameters, "parameters", p.compute, b.piece, pieces);
    } else {
      b.value = make(MemoryKind::parameters, "parameters", p.compute, b.padded, false);
    }
    if (!layout.for_training) continue;
    const int64_t stored = stored_count(b);
    b.resident = stored;
    if (layout.offload.fraction > 0 && optimizer.by_element() && b.kind.rule.trains())
      b.resident = resident_part(stored, layout.offload.fraction);
    if (p.has_master())
      b.master = make(MemoryKind::optimizer, "master weights", p.master, b.resident, pieces);
    if (layout.ema_decay > 0)
      b.average = make(MemoryKind::optimizer, "average of weights", p.wide(), stored, pieces);
    if (!b.kind.rule.trains()) continue;
    if (sharding.shards_gradients()) {
      b.grad_piece = make(MemoryKind::gradients, "gradients", p.grad, b.piece, pieces);
    } else {
      b.grad = make(MemoryKind::gradients, "gradients", p.grad, b.padded, false);
    }
    if (coded) {
      b.coded.first = make(MemoryKind::optimizer, "exp_avg, 8 bits", DType::u8, stored, pieces);
      b.coded.second = make(MemoryKind::optimizer, "exp_avg_sq, 8 bits", DType::u8, stored, pieces);
      b.coded.scales =
          make(MemoryKind::optimizer, "scales of moments", DType::f32, 2 * (stored / kCodeBlock), false);
      continue;
    }
    if (const std::string scratch(optimizer.element_scratch()); !scratch.empty())
      b.scratch = make(MemoryKind::optimizer, scratch.c_str(), p.grad, stored, pieces);
    if (is_compressed(b)) allocate_errors(b, fmt::format("bucket {}", i));
    for (std::string_view name : optimizer.element_states(b.kind.rule))
      b.moments.push_back(
          make(MemoryKind::optimizer, std::string(name).c_str(), p.state, b.resident, pieces));
  }
  lay_out_offloaded();
  if (layout.for_training) {
    make_updates();
    allocate_codes();
    allocate_windows();
  }
  if (!compute.meta()) return;
  for (Unit& u : units_) {
    const ParameterSpec& spec = parameters_[u.first].spec;
    u.value_record = compute.meta()->new_record(spec.name);
    u.grad_record = compute.meta()->new_record("gradient of " + spec.name);
    u.value_record->written = true;
    for (int i = 0; i < kAxisCount; ++i)
      if (groups.mesh.degree[i] > 1) u.value_record->place.axis[i] = spec.place.axis[i];
    if (sharding.shards_weights())
      place_unit(*u.value_record, sharding_axes(buckets_[u.bucket].kind), Placement::S(0));
  }
}

void ParameterStore::clear() {
  sparse_ = false;
  if (compute_->meta()) return;
  wait_offloaded();
  fetched_ahead_ = false;
  const auto zero = [&](const Tensor& t) {
    if (!t.defined()) return;
    in_parts(t.elements(), [&](int64_t at, int64_t n) { fill_zero(*compute_, t.flat(at, {n})); });
  };
  for (Bucket& b : buckets_) {
    for (const Tensor& t : {b.value, b.value_piece, b.grad, b.grad_piece, b.master, b.coded.first,
                            b.coded.second, b.coded.scales, b.average, b.sent_error, b.sum_error})
      zero(t);
    if (b.slow.empty()) continue;
    for (int s = 0; s < state_count(b); ++s) zero(state_at(b, s, b.resident, stored_count(b) - b.resident));
    for (const Tensor& t : b.moments) zero(t);
  }
  clear_updates();
}

namespace {

/// Elements [begin, begin + to.elements()) of a rank's part of a parameter.
void fill_initial(Stream& s, const ParameterSpec& spec, Tensor to, const Slice& slice, uint64_t seed) {
  if (spec.init != Init::normal) {
    fill_value(s, to, spec.init == Init::ones ? 1.0 : 0.0);
    return;
  }
  Runs runs(slice);
  for (Run run = runs.next(); run.count > 0; run = runs.next())
    fill_normal(s, to.flat(run.local, {run.count}), seed, hash_name(spec.name), run.global, 0.0, spec.std);
}

}  // namespace

void ParameterStore::initialize(uint64_t seed) {
  clear();
  if (!layout_.sharding.shards_weights())
    for (const Parameter& p : parameters_) {
      const int64_t n = p.spec.slice.elements();
      fill_initial(*compute_, p.spec, buckets_[p.bucket].value.flat(p.offset, {n}), p.spec.slice, seed);
    }
  if (layout_.for_training && (layout_.precision.has_master() || layout_.sharding.shards_weights()))
    for (const OwnedPiece& piece : stored_pieces())
      in_parts(piece.master.elements(), [&](int64_t at, int64_t n) {
        fill_initial(*compute_, parameters_[piece.id].spec, piece.master.flat(at, {n}),
                     piece.slice.range(at, at + n), seed);
      });
  if (layout_.sharding.shards_weights()) publish_loaded();
  start_average();
}

/// View of a unit's part of a flat tensor, as one matrix, lying as `record` says.
Tensor ParameterStore::joined_view(Tensor flat, TensorRecord* record, int id, int n) const {
  const Shape& first = parameters_[id].spec.shape;
  Shape shape = first;
  for (int i = id + 1; i < id + n; ++i) shape.dims[0] += parameters_[i].spec.shape[0];
  Tensor t = flat.flat(parameters_[id].offset, shape);
  if (record) t.record = record;
  return t;
}

Tensor ParameterStore::value(int id, int n) const {
  const Parameter& p = parameters_[id];
  const Bucket& b = buckets_[p.bucket];
  LT_CHECK(b.value.defined(), "{} is used while its segment is not gathered", p.spec.name);
  return joined_view(b.value, units_[p.unit].value_record, id, n);
}

Tensor ParameterStore::grad(int id, int n) const {
  const Parameter& p = parameters_[id];
  const Bucket& b = buckets_[p.bucket];
  LT_CHECK(b.grad.defined(), "the gradient of {} is not held now", p.spec.name);
  return joined_view(b.grad, units_[p.unit].grad_record, id, n);
}

bool ParameterStore::first_copy(const Bucket& b) const {
  for (Axis a : kTensorAxes)
    if (!b.kind.cut.has(a) && groups_->coordinate(a) != 0) return false;
  return (!b.kind.tied || groups_->tied.rank() == 0) && (!b.kind.copied || groups_->copies.rank() == 0);
}

std::vector<OwnedPiece> ParameterStore::pieces(bool owned) const {
  std::vector<OwnedPiece> out;
  for (const Bucket& b : buckets_) {
    // Copies are written once.
    if (owned && !first_copy(b)) continue;
    const int64_t stored = stored_begin(b);
    const int64_t begin = owned ? own_begin(b) : stored, end = begin + (owned ? b.own : stored_count(b));
    for (int u : b.units)
      for (int id = units_[u].first; id < units_[u].first + units_[u].count; ++id) {
        const Parameter& p = parameters_[id];
        const int64_t from = std::max(begin, p.offset),
                      to = std::min(end, p.offset + p.spec.slice.elements());
        const auto add = [&](int64_t from, int64_t to) {  // all of it resident, or none
          if (from >= to) return;
          const Shape n{to - from};
          OwnedPiece piece{id, p.spec.slice.range(from - p.offset, to - p.offset), {}, {}, {}};
          piece.master = layout_.precision.has_master()      ? state_at(b, 0, from - stored, to - from)
                         : layout_.sharding.shards_weights() ? b.value_piece.flat(from - stored, n)
                                                             : b.value.flat(from, n);
          piece.moments = moments_at(b, from - stored, to - from);
          if (trains(id))
            piece.grad = layout_.sharding.shards_gradients() ? b.grad_piece.flat(from - stored, n)
                                                             : b.grad.flat(from, n);
          out.push_back(piece);
        };
        const int64_t middle = std::clamp(stored + b.resident, from, std::max(from, to));
        add(from, middle);
        add(middle, to);
      }
  }
  return out;
}

std::vector<Tensor> ParameterStore::held_values() const {
  std::vector<Tensor> values;
  for (const Bucket& b : buckets_)
    values.push_back(layout_.sharding.shards_weights() ? b.value_piece : b.value);
  return values;
}

std::vector<OwnedPiece> ParameterStore::owned_pieces() const { return pieces(true); }
std::vector<OwnedPiece> ParameterStore::stored_pieces() const { return pieces(false); }

bool ParameterStore::owns_whole(const ParameterSpec& spec) const {  // the first of all ranks that have it
  if (groups_->gradient.rank() != 0 ||
      (groups_->tied.size() > 1 && spec.tied_stages && groups_->tied.rank() != 0))
    return false;
  bool first = true;
  for (Axis a : kTensorAxes) first = first && groups_->coordinate(a) == 0;
  return first;
}

std::vector<RegisteredBuffer> ParameterStore::kept(bool owned) const {
  bool first = groups_->gradient.rank() == 0 && groups_->coordinate(Axis::pipeline) == 0;
  for (Axis a : kTensorAxes) first = first && groups_->coordinate(a) == 0;
  return first || !owned ? kept_ : std::vector<RegisteredBuffer>();
}

std::vector<NamedState> ParameterStore::moments_at(const Bucket& b, int64_t from, int64_t n) const {
  std::vector<NamedState> out;
  const std::vector<std::string_view> names = optimizer_of(b.kind.rule.rule).element_states(b.kind.rule);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!b.coded.first.defined()) {
      out.push_back({names[i], state_at(b, static_cast<int>(i) + layout_.precision.has_master(), from, n)});
      continue;
    }
    Tensor open;
    open.dtype = DType::f32;
    open.shape = {n};
    open.record = b.coded.first.record;
    const int64_t stored = b.coded.first.elements();
    if (!b.open.empty())
      open.data = const_cast<float*>(b.open.data()) + static_cast<int64_t>(i) * stored + from;
    out.push_back({names[i], open});
  }
  if (b.average.defined()) out.push_back({kAverage, b.average.flat(from, {n})});
  return out;
}

int64_t ParameterStore::open_state_bytes() const {
  int64_t bytes = 0;
  for (const Bucket& b : buckets_)
    if (b.coded.first.defined()) bytes += 2 * b.coded.first.elements() * static_cast<int64_t>(sizeof(float));
  return bytes;
}

void ParameterStore::prefetch_states() {
  wait_offloaded();
  for (Bucket& b : buckets_) {
    if (!b.coded.first.defined()) continue;
    b.open.resize(2 * static_cast<size_t>(b.coded.first.elements()));
    Tensor values;
    values.data = b.open.data();
    values.shape = {static_cast<int64_t>(b.open.size())};
    decode_moments(*compute_, values, b.coded);
  }
  compute_->synchronize();
}

void ParameterStore::offload_states(bool changed) {
  for (Bucket& b : buckets_) {
    if (b.open.empty()) continue;
    Tensor values;
    values.data = b.open.data();
    values.shape = {static_cast<int64_t>(b.open.size())};
    if (changed) encode_moments(*compute_, b.coded, values);
    compute_->synchronize();
    b.open = {};
  }
}

void ParameterStore::publish_loaded() {
  sparse_ = false;
  for (Bucket& b : buckets_) {
    const Group& g = shard_group(b);
    if (layout_.precision.has_master()) copy_master(b, held(b));
    if (!layout_.sharding.gathers_updates() || g.size() == 1) continue;
    g.stream->wait(compute_->record());
    g.comm->all_gather(*g.stream, b.value, b.value.flat(piece_begin(b), {b.piece}));
    compute_->wait(g.stream->record());
  }
}

}  // namespace ltrain
