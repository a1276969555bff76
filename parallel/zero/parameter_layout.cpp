#include "parallel/zero/parameter_layout.h"

#include <numeric>

#include "base/error.h"
#include "kernels/matmul/nf4.h"
#include "kernels/meta/placement_rules.h"
#include "parallel/optim/optimizer.h"

namespace ltrain {
namespace {

RuleTarget target_of(const ParameterSpec& s) {
  return {s.name, s.is_matrix(), s.embedding, s.decay, s.router, s.is_stack()};
}

}  // namespace

int ParameterLayout::add(std::vector<ParameterSpec> unit, int segment, int64_t layer) {
  LT_CHECK(!filled(), "expected parameter declarations before allocate(), got one after it");
  Unit u;
  u.first = count();
  u.count = static_cast<int>(unit.size());
  u.segment = segment;
  u.layer = layer;
  for (ParameterSpec& spec : unit) {
    if (spec.slice.global.rank == 0) spec.slice = Slice::whole(spec.shape);
    if (spec.matrix.rank == 0) spec.matrix = spec.slice.global;
    if (spec.matrix.rank > 2)
      spec.matrix = {spec.matrix[spec.matrix.rank - 2], spec.matrix[spec.matrix.rank - 1]};
    for (const Parameter& p : parameters_)
      LT_CHECK(p.spec.name != spec.name || common_elements(p.spec.slice, spec.slice) == 0,
               "expected one declaration of parameter {}, got a second one with common elements", spec.name);
    parameters_.push_back({std::move(spec), {}, static_cast<int>(units_.size())});
  }
  units_.push_back(u);
  return u.first;
}

int64_t ParameterLayout::elements() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.spec.slice.elements();
  return n;
}

int ParameterLayout::find(std::string_view name) const {
  for (int i = 0; i < count(); ++i)
    if (parameter(i).spec.name == name) return i;
  return -1;
}

ParameterRule ParameterLayout::rule_with(int id, const OptimizerSettings& optimizer) const {
  return rule_of(optimizer, target_of(parameter(id).spec));
}

void ParameterLayout::choose_rules(const OptimizerSettings& optimizer) {
  for (int id = 0; id < count(); ++id) parameters_[id].rule = rule_with(id, optimizer);
  for (const Unit& u : units_) {
    const Parameter& first = parameter(u.first);
    for (int id = u.first; id < u.first + u.count; ++id) {
      const ParameterRule &a = first.rule, &b = parameter(id).rule;
      const bool coded = optimizer_of(a.rule).coded_states();
      if (a.rule != b.rule || (coded && !(a == b)))
        fail(ExitCode::usage,
             "{}: {} has {} and {} has {}{}, and they are parts of one matrix, whose parts "
             "have one "
             "rule; match both",
             a.trains() && b.trains() ? "optimizer.groups" : "optimizer.frozen", first.spec.name,
             update_rule_name(a.rule), parameter(id).spec.name, update_rule_name(b.rule),
             coded ? " of other settings" : "");
    }
  }
}

ParameterLayout::Kind ParameterLayout::kind_of(const ParameterSpec& spec) const {
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

/// Blocks of NF4 are within a row, on any rank: a matrix's codes do not depend on the layout.
static void check_nf4(const ParameterSpec& spec) {
  if (spec.shape[1] % kNf4Block != 0)
    fail(ExitCode::usage,
         "lora.base = nf4: {} has rows of {} elements{}, and blocks of NF4 have {} of one row; nearest valid "
         "value: full",
         spec.name, spec.shape[1], spec.shape[1] < spec.slice.global[1] ? " on each rank" : "", kNf4Block);
}

/// Elements that share a scale in the matrices of a unit; 0: they are not quantized.
static int64_t group_of_unit(const std::vector<ParameterLayout::Parameter>& unit,
                             const QuantizationSettings& quantization) {
  const ParameterLayout::Parameter& first = unit.front();
  const int64_t group = quantization_group(quantization, first.spec);
  for (const auto& p : unit)
    if (quantization_group(quantization, p.spec) != group)
      fail(ExitCode::usage,
           "quantization.match: one of {} and {} is quantized, and they are parts of one matrix; match both "
           "or "
           "ignore both",
           first.spec.name, p.spec.name);
  if (group > 0 && !first.rule.trains())
    fail(ExitCode::usage,
         "quantization.match: {} is frozen, and what is quantized has to train; add it to "
         "quantization.ignore, "
         "or leave it out of optimizer.frozen",
         first.spec.name);
  return group;
}

/// Sets how a unit with sparse matrices is laid out, if that is for masks that move or need four rows.
static void lay_out_masks(ParameterLayout::Kind& kind, const std::vector<ParameterLayout::Parameter>& unit,
                          const SparsitySettings& sparsity) {
  const ParameterLayout::Parameter& first = unit.front();
  const bool sparse = is_sparse(sparsity, first.spec);
  if (!sparsity.moves() && !sparsity.transposable) return;
  for (const auto& p : unit)
    if (is_sparse(sparsity, p.spec) != sparse)
      fail(ExitCode::usage,
           "sparsity.match: one of {} and {} is sparse, and they are parts of one matrix, whose masks are "
           "kept together; match both or neither",
           first.spec.name, p.spec.name);
  if (!sparse) return;
  kind.masked = sparsity.moves();
  if (sparsity.transposable) kind.strip = 4 * first.spec.shape[1];
}

void ParameterLayout::fill(const Groups& groups, ShardingPolicy sharding, const OptimizerSettings& optimizer,
                           int64_t bucket_elements) {
  groups_ = &groups;
  sharding_ = sharding;
  choose_rules(optimizer);
  // One bucket is open for each kind. A bucket stays within a segment for two reasons. ZeRO-2 and 3 complete
  // a bucket once a micro-batch, so that its backward must run as one. And the norm is the same to the bit if
  // all stages sum it by the same buckets.
  std::vector<int> open;
  for (int u = static_cast<int>(units_.size()) - 1; u >= 0; --u) {
    Kind kind = kind_of(parameters_[units_[u].first].spec);
    kind.rule = parameters_[units_[u].first].rule;
    // without coded states, runs of a bucket may differ in these
    if (!optimizer_of(kind.rule.rule).coded_states())
      kind.rule.lr_scale = 1, kind.rule.decay = true, kind.rule.weight_decay.reset();
    kind.nf4 = parameters_[units_[u].first].spec.nf4 && !kind.rule.trains();
    for (int id = units_[u].first; kind.nf4 && id < units_[u].first + units_[u].count; ++id)
      check_nf4(parameters_[id].spec);
    const auto begin = parameters_.begin() + units_[u].first;
    const std::vector<Parameter> unit(begin, begin + units_[u].count);
    kind.group = group_of_unit(unit, optimizer.quantization);
    lay_out_masks(kind, unit, optimizer.sparsity);
    const auto fits = [&](int i) {
      const Bucket& b = buckets_[i];
      return b.kind == kind && b.used < bucket_elements && !b.kind.tied && b.segment == units_[u].segment;
    };
    int at = -1;
    for (int i : open)
      if (fits(i)) at = i;
    if (at < 0) {
      std::erase_if(open, [&](int i) { return buckets_[i].kind == kind; });
      at = static_cast<int>(buckets_.size());
      open.push_back(at);
      buckets_.emplace_back();
      buckets_.back().index = at;
      buckets_.back().kind = kind;
      buckets_.back().segment = units_[u].segment;
      buckets_.back().shards_weights = sharding.shards_weights(units_[u].layer);
    }
    Bucket& b = buckets_[at];
    b.used = round_up(b.used, std::lcm(kBucketAlign, kind.unit()));
    for (int id = units_[u].first; id < units_[u].first + units_[u].count; ++id) {
      parameters_[id].bucket = at;
      parameters_[id].offset = b.used;
      b.used += parameters_[id].spec.shape.elements();
    }
    units_[u].bucket = at;
    b.units.push_back(u);
  }
}

void ParameterLayout::cut(int bucket, int64_t block) {
  Bucket& b = buckets_[static_cast<size_t>(bucket)];
  const int ranks = shard_group(b).size(), copies = replicate_group(b).size();
  b.padded = round_up(b.used, std::lcm(block, kBucketAlign) * ranks * copies);
  b.piece = b.padded / ranks;
  b.own = b.piece / copies;
}

bool ParameterLayout::adds(const Bucket& b) const {
  for (Axis a : kTensorAxes)
    if (!b.kind.cut.has(a) && groups_->coordinate(a) != 0) return false;
  return !b.kind.copied || groups_->copies.rank() == 0;
}

bool ParameterLayout::first_copy(const Bucket& b) const {
  return adds(b) && (!b.kind.tied || groups_->tied.rank() == 0);
}

bool ParameterLayout::first_of_all() const {
  bool first = groups_->gradient.rank() == 0;
  for (Axis a : kTensorAxes) first = first && groups_->coordinate(a) == 0;
  return first;
}

bool ParameterLayout::owns_whole(const ParameterSpec& spec) const {
  return first_of_all() && (groups_->tied.size() == 1 || !spec.tied_stages || groups_->tied.rank() == 0);
}

std::vector<int> ParameterLayout::members(const Bucket& b) const {
  std::vector<int> ids;
  for (int u : b.units)
    for (int id = units_[u].first; id < units_[u].first + units_[u].count; ++id) ids.push_back(id);
  return ids;
}

void ParameterLayout::place_bucket(Stream& s, const Bucket& b, const Tensor& t, bool sharded) const {
  if (!s.meta() || !t.defined()) return;
  place_set(s, t, kGradientAxes, Placement::R());
  if (sharded) place_set(s, t, groups_->mesh.shard, Placement::S(0));
  for (Axis a : kTensorAxes) place_set(s, t, a, Placement::R());
  place_set(s, t, b.kind.cut, Placement::S(0));
}

void ParameterLayout::place_unit(TensorRecord& unit, AxisSet axes, Placement p) const {
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); axes.has(a) && groups_->size(a) > 1) unit.place[a] = p;
}

Tensor joined_view(const ParameterLayout& layout, Tensor flat, TensorRecord* record, int id, int n) {
  const auto& first = layout.parameter(id);
  Shape shape = first.spec.shape;
  for (int i = id + 1; i < id + n; ++i) shape.dims[0] += layout.parameter(i).spec.shape[0];
  Tensor t = flat.flat(first.offset, shape);
  if (record) t.record = record;
  return t;
}

}  // namespace ltrain
