// The update: each optimizer on what this rank has states of, then the gather of what others have.
#include <algorithm>
#include <utility>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "parallel/zero/parameter_store.h"

namespace ltrain {

/// What updates of whole tensors see of the buckets.
class ParameterStore::Updates final : public UpdateContext {
 public:
  explicit Updates(ParameterStore& store) : s_(store), averaged_(store.buckets_.size()) {
    for (int id = 0; id < s_.count(); ++id)
      if (const Parameter& p = s_.parameters_[id]; optimizer_of(p.rule.rule).needs_tensor_sums())
        sums_.add(id, p.spec, p.rule);
    sums_.allocate(*this);
    bool used[kUpdateRules + 1] = {};
    for (const Parameter& p : s_.parameters_) used[static_cast<int>(p.rule.rule)] = true;
    for (int i = 0; i < kUpdateRules; ++i)
      if (used[i]) updates_[i] = optimizer_of(static_cast<UpdateRule>(i)).make_tensor_update(*this);
  }

  /// Of rule `r`; null where it has none.
  TensorUpdate* of(UpdateRule r) {
    return r == UpdateRule::still ? nullptr : updates_[static_cast<int>(r)].get();
  }
  template <class F>
  void each(F f) const {
    for (const auto& u : updates_)
      if (u) f(*u);
  }
  void begin(const AdamwArgs& step) { step_ = step; }

  Stream& compute() override { return *s_.compute_; }
  Memory& memory() override { return *s_.memory_; }
  const Groups& groups() override { return *s_.groups_; }
  const OptimizerSettings& settings() override { return s_.layout_.optimizer; }
  DType master_type() override { return s_.layout_.precision.master; }
  uint64_t seed() override { return s_.layout_.seed; }
  const AdamwArgs& step() override { return step_; }
  int64_t step_number() override { return s_.step_; }
  TensorSums& sums() override { return sums_; }

  std::vector<int> buckets(UpdateRule r) override {
    std::vector<int> out;
    for (size_t i = 0; i < s_.buckets_.size(); ++i)
      if (s_.buckets_[i].kind.rule.rule == r && s_.moves(s_.buckets_[i])) out.push_back(static_cast<int>(i));
    return out;
  }

  void each_part(int bucket, Extent extent, const EachPart& f) override {
    Bucket& b = s_.buckets_[static_cast<size_t>(bucket)];
    if (extent == Extent::owned && !s_.adds(b)) return;
    compute().wait(std::exchange(averaged_[static_cast<size_t>(bucket)], Event()));
    if (compute().meta() && extent == Extent::updated && s_.layout_.sharding.gathers_updates())
      place_set(compute(), b.value, groups().mesh.shard, Placement::S(0));  // where a piece is padding, too
    const int64_t stored = s_.stored_begin(b), begin = extent == Extent::owned ? s_.own_begin(b) : stored;
    s_.each_parameter(b, begin, extent == Extent::owned ? b.own : s_.stored_count(b),
                      [&](const Parameter& p, int64_t from, int64_t n) {
                        const int id = static_cast<int>(&p - s_.parameters_.data());
                        const ParameterPart part{id,
                                                 bucket,
                                                 p.spec,
                                                 p.rule,
                                                 from - p.offset,
                                                 from - stored,
                                                 s_.range(b, from, n),
                                                 s_.args_of(p.rule, step_)};
                        f(part);
                        if (extent == Extent::updated) s_.average(b, from, part.elements.master, step_.step);
                      });
  }

  const Group& group(int bucket) override { return s_.shard_group(at(bucket)); }
  std::vector<BucketMember> members(int bucket) override {
    std::vector<BucketMember> out;
    for (int id : s_.members(at(bucket))) out.push_back({s_.parameters_[id].spec, s_.parameters_[id].offset});
    return out;
  }
  Elements stored(int bucket) override {
    const Bucket& b = at(bucket);
    return s_.range(b, s_.stored_begin(b), s_.stored_count(b));
  }
  Tensor scratch(int bucket) override { return at(bucket).scratch; }
  Tensor weights(int bucket) override { return s_.held(at(bucket)); }

  void require_gradients(int bucket, Tensor t, std::string_view when) override {
    if (!compute().meta()) return;
    const Bucket& b = at(bucket);
    const AxisSet cut =
        s_.layout_.sharding.shards_optimizer() ? b.kind.cut | groups().mesh.shard : b.kind.cut;
    for (Axis a : kEachGradientAxis)
      place_require(compute(), when, t, a, cut.has(a) ? Placement::S(0) : Placement::R());
  }

  void publish_weights(UpdateRule r, std::string_view when) override {
    for (int i : buckets(r)) {
      Bucket& b = s_.buckets_[static_cast<size_t>(i)];
      s_.place_bucket(b, s_.layout_.sharding.shards_weights() ? b.value_piece : b.value,
                      s_.layout_.sharding.shards_optimizer() && s_.shard_group(b).size() > 1);
      s_.gather_values(b);
    }
    s_.wait_for_values();
    s_.require_values(when);
  }

  Tensor gather_grads(int bucket) override {
    const Bucket& b = at(bucket);
    const Group& g = s_.shard_group(b);
    const Tensor mine = stored(bucket).grad;
    Tensor whole = b.grad;
    if (s_.layout_.sharding.shards_gradients()) {
      whole =
          memory().allocate(MemoryKind::communication, "directions of Muon", b.grad_piece.dtype, {b.padded});
      if (compute().meta()) whole.record->place = b.grad_piece.record->place;
    }
    if (g.size() > 1 && s_.layout_.sharding.shards_optimizer()) {
      g.stream->wait(compute().record());
      g.comm->all_gather(*g.stream, whole, mine);
      compute().wait(g.stream->record());
    } else if (s_.layout_.sharding.shards_gradients()) {
      cast(compute(), whole, mine);
    }
    return whole;
  }

  void sum_grads(int bucket, Tensor whole) override {
    const Group& g = s_.shard_group(at(bucket));
    const Tensor mine = stored(bucket).grad;
    if (g.size() > 1) {
      if (compute().meta()) place_set(compute(), whole, groups().mesh.shard, Placement::P());
      g.stream->wait(compute().record());
      if (s_.layout_.sharding.shards_optimizer())
        g.comm->reduce_scatter(*g.stream, mine, whole);
      else
        g.comm->all_reduce(*g.stream, whole);
      compute().wait(g.stream->record());
    } else if (s_.layout_.sharding.shards_gradients()) {
      cast(compute(), mine, whole);
    }
    if (s_.layout_.sharding.shards_gradients()) memory().release(whole);
  }

  void average_moments(int bucket, Tensor values, double factor, Tensor where) override {
    LT_CHECK(!s_.layout_.sharding.shards_optimizer(), "moments of all elements on every rank");
    Bucket& b = s_.buckets_[static_cast<size_t>(bucket)];
    const Group& g = s_.shard_group(b);
    g.stream->wait(compute().record());
    s_.compressed_all_reduce(b, values, factor, where, true);
    averaged_[static_cast<size_t>(bucket)] = g.stream->record();
  }

 private:
  const Bucket& at(int bucket) const { return s_.buckets_[static_cast<size_t>(bucket)]; }

  ParameterStore& s_;
  AdamwArgs step_;
  TensorSums sums_;
  std::unique_ptr<TensorUpdate> updates_[kUpdateRules];
  std::vector<Event> averaged_;  // by bucket
};

ParameterStore::ParameterStore() = default;
ParameterStore::~ParameterStore() = default;

void ParameterStore::make_updates() { updates_ = std::make_unique<Updates>(*this); }

void ParameterStore::clear_updates() {
  if (updates_) updates_->each([](TensorUpdate& u) { u.clear(); });
}

Elements ParameterStore::range(const Bucket& b, int64_t from, int64_t n) const {
  const int64_t at = from - stored_begin(b);
  const ShardingPolicy sharding = layout_.sharding;
  const Tensor param = sharding.shards_weights() ? b.value_piece.flat(at, {n}) : b.value.flat(from, {n});
  const bool low = layout_.precision.has_master();
  Elements e;
  const bool resident = at + n <= b.resident;
  if (!low)
    e.master = param;
  else if (resident)
    e.master = b.master.flat(at, {n});
  if (low) e.low = param;
  e.grad = sharding.shards_gradients() ? b.grad_piece.flat(at, {n}) : b.grad.flat(from, {n});
  if (resident)
    for (const Tensor& t : b.moments) e.states.push_back(t.flat(at, {n}));
  return e;
}

std::vector<int> ParameterStore::members(const Bucket& b) const {
  std::vector<int> ids;
  for (int u : b.units)
    for (int id = units_[u].first; id < units_[u].first + units_[u].count; ++id) ids.push_back(id);
  return ids;
}

AdamwArgs ParameterStore::args_of(const ParameterRule& r, const AdamwArgs& step) const {
  AdamwArgs a = step;
  if (!r.router) a.step = std::max<int64_t>(1, a.step - layout_.optimizer.router_warmup);  // its own first
  a.lr *= r.lr_scale;
  if (r.weight_decay) a.weight_decay = *r.weight_decay;
  return a;
}

bool ParameterStore::moves(const Bucket& b) const {
  if (!b.kind.rule.trains()) return false;
  // A plan is of the steps after the warm-up.
  return compute_->meta() || step_ > layout_.optimizer.router_warmup || b.kind.rule.router;
}

bool ParameterStore::adds(const Bucket& b) const {
  for (Axis a : kTensorAxes)
    if (!b.kind.cut.has(a) && groups_->coordinate(a) != 0) return false;
  return !b.kind.copied || groups_->copies.rank() == 0;
}

/// ZeRO-1 and 2: what this rank has updated, to the others, and theirs.
void ParameterStore::gather_values(Bucket& b) {
  const Group& g = shard_group(b);
  if (!layout_.sharding.gathers_updates() || g.size() == 1) return;
  g.stream->wait(compute_->record());
  g.comm->all_gather(*g.stream, b.value, b.value.flat(piece_begin(b), {b.piece}));
}

void ParameterStore::wait_for_values() {
  const Group& g = groups_->shard;
  if (layout_.sharding.gathers_updates() && g.size() > 1)
    compute_->wait(g.stream->record());  // that of experts runs on the same stream
}

bool ParameterStore::updates_elements(const Bucket& b) const {
  return optimizer_of(b.kind.rule.rule).updates_elements(layout_.optimizer, step_);
}

bool ParameterStore::sums_gradients(const Bucket& b) const {
  return optimizer_of(b.kind.rule.rule).sums_gradients(layout_.optimizer, step_);
}

void ParameterStore::add_own_squares(const Bucket& b, const Tensor& total) {
  updates_->of(b.kind.rule.rule)->add_own_squares(b.grad, shard_group(b).size(), total);
}

bool ParameterStore::estimates(int64_t step) const {
  const OptimizerSettings& o = layout_.optimizer;
  for (int i = 0; i < kUpdateRules; ++i)
    if (const UpdateRule r = static_cast<UpdateRule>(i); o.uses(r) && optimizer_of(r).estimates(o, step))
      return true;
  return false;
}

void ParameterStore::shift_values() {
  updates_->each([](TensorUpdate& u) { u.shift_values(); });
}

void ParameterStore::keep_shifted_gradients() {
  updates_->each([](TensorUpdate& u) { u.keep_shifted_gradients(); });
}

std::vector<WholeState> ParameterStore::whole_states(bool owned) const {
  std::vector<WholeState> out;
  if (updates_)
    updates_->each([&](const TensorUpdate& u) {
      for (const WholeState& w : u.states())
        if (!owned || owns_whole(parameters_[w.id].spec)) out.push_back(w);
    });
  return out;
}

void ParameterStore::update(const AdamwArgs& step) {
  sparsify();
  updates_->begin(step);
  next_window_ = 0;
  bool whole[kUpdateRules] = {};
  for (Bucket& b : buckets_) {
    if (!b.kind.rule.trains()) continue;
    if (!updates_elements(b)) {
      whole[static_cast<int>(b.kind.rule.rule)] = true;
      continue;
    }
    if (moves(b))
      update_elements(b, step);
    else
      pass_windows(b);
    gather_values(b);
  }
  for (int i = 0; i < kUpdateRules; ++i)
    if (whole[i]) updates_->of(static_cast<UpdateRule>(i))->update();
  for (Bucket& b : buckets_)
    if (b.kind.rule.trains() && !updates_elements(b)) gather_values(b);
  fetched_ahead_ = false;
  wait_for_values();
  require_values("end of the update");
}

/// On meta: every rank has again what its stage of ZeRO leaves it.
void ParameterStore::require_values(std::string_view when) const {
  if (!compute_->meta()) return;
  const bool sharded = layout_.sharding.shards_weights();
  for (const Bucket& b : buckets_)
    for (Axis a : kEachGradientAxis)
      place_require(
          *compute_, when, sharded ? b.value_piece : b.value, a,
          b.kind.cut.has(a) || (sharded && groups_->mesh.shard.has(a)) ? Placement::S(0) : Placement::R());
}

}  // namespace ltrain
