// The update: each optimizer on what this rank has states of, then the gather of what others have.
//
// Optimizers that need numbers of a whole tensor (LAMB's lengths, Adafactor's rows and columns) get them from
// sums to which every rank adds what it owns, the same elements under every stage of ZeRO, so that all stages
// give the same bits.
#include <algorithm>
#include <cmath>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/optimizer/adafactor.h"
#include "kernels/optimizer/momentum.h"
#include "kernels/optimizer/two_step_update.h"
#include "parallel/zero/parameter_store.h"

namespace ltrain {

ParameterStore::Range ParameterStore::range(Bucket& b, int64_t from, int64_t n) const {
  const int64_t at = from - stored_begin(b);
  const ShardingPolicy sharding = layout_.sharding;
  const Tensor param = sharding.shards_weights() ? b.value_piece.flat(at, {n}) : b.value.flat(from, {n});
  const bool low = layout_.precision.has_master();
  Range r;
  const bool resident = at + n <= b.resident;
  if (!low)
    r.master = param;
  else if (resident)
    r.master = b.master.flat(at, {n});
  if (low) r.low = param;
  r.grad = sharding.shards_gradients() ? b.grad_piece.flat(at, {n}) : b.grad.flat(from, {n});
  if (resident)
    for (const Tensor& t : b.moments) r.moments.push_back(t.flat(at, {n}));
  return r;
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
  a.coupled = r.rule == UpdateRule::adam;
  return a;
}

bool ParameterStore::moves(const Bucket& b) const {
  if (b.kind.rule.rule == UpdateRule::still) return false;
  // A plan is of the steps after the warm-up.
  return compute_->meta() || step_ > layout_.optimizer.router_warmup || b.kind.rule.router;
}

bool ParameterStore::adds(const Bucket& b) const {
  for (Axis a : kTensorAxes)
    if (!b.kind.cut.has(a) && groups_->coordinate(a) != 0) return false;
  return !b.kind.copied || groups_->copies.rank() == 0;
}

Tensor ParameterStore::own_part(const Tensor& t) const {
  if (!compute_->meta()) return t;
  const Tensor part = place_apart(*compute_, t, t.record->name);
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); a != Axis::pipeline && part.record->place[a] == Placement::R())
      place_set(*compute_, part, a, Placement::S(0));
  return part;
}

/// Sums over all ranks that have parts of this pipeline rank's parameters.
void ParameterStore::reduce_sums(Tensor sums) {
  if (compute_->meta())  // whoever has nothing to add has added zero
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis a = static_cast<Axis>(i); a != Axis::pipeline)
        place_set(*compute_, sums, a, Placement::P());
  for (const Group* g :
       {&groups_->gradient, &groups_->tensor, &groups_->depth, &groups_->row, &groups_->column}) {
    if (g->size() == 1) continue;
    g->stream->wait(compute_->record());
    g->comm->all_reduce(*g->stream, sums);
    compute_->wait(g->stream->record());
  }
}

/// Squares of each tensor with the rule, and of its direction, summed.
void ParameterStore::add_squares(UpdateRule rule) {
  fill_zero(*compute_, tensor_sums_);
  for (Bucket& b : buckets_) {
    if (b.kind.rule.rule != rule || !adds(b) || !moves(b)) continue;
    each_parameter(b, own_begin(b), b.own, [&](const Parameter& p, int64_t from, int64_t n) {
      const Range r = range(b, from, n);
      sum_squares(*compute_, tensor_sums_.flat(2 * p.tensor, {1}), own_part(r.master));
      sum_squares(*compute_, tensor_sums_.flat(2 * p.tensor + 1, {1}), own_part(r.grad));
    });
  }
  reduce_sums(tensor_sums_);
}

/// The second half: every parameter with the rule moves along its direction.
void ParameterStore::move_along(const AdamwArgs& step, UpdateRule rule) {
  const OptimizerSettings& o = layout_.optimizer;
  for (Bucket& b : buckets_) {
    if (b.kind.rule.rule != rule || !moves(b)) continue;
    if (compute_->meta() && layout_.sharding.gathers_updates())
      place_set(*compute_, b.value, groups_->mesh.shard, Placement::S(0));  // where a piece is padding, too
    each_parameter(b, stored_begin(b), stored_count(b), [&](const Parameter& p, int64_t from, int64_t n) {
      const Range r = range(b, from, n);
      const AdamwArgs a = args_of(p.rule, step);
      DirectionArgs d;
      d.lr = a.lr;
      Tensor sums;
      if (rule != UpdateRule::lamb && rule != UpdateRule::onebit_lamb && p.rule.decay)
        d.keep = 1 - a.lr * a.weight_decay;
      if (rule == UpdateRule::muon) {
        const double rows = static_cast<double>(p.spec.matrix[0]),
                     cols = static_cast<double>(p.spec.matrix[1]);
        d.lr *=
            o.muon_match_rms ? 0.2 * std::sqrt(std::max(rows, cols)) : std::sqrt(std::max(1.0, rows / cols));
      } else {
        d.scale = rule == UpdateRule::lamb          ? DirectionScale::trust
                  : rule == UpdateRule::onebit_lamb ? DirectionScale::given
                                                    : DirectionScale::rms;
        sums = tensor_sums_.flat(2 * p.tensor, {2});
      }
      if (rule == UpdateRule::adafactor) {
        d.lr = std::min(a.lr, 1 / std::sqrt(static_cast<double>(a.step)));
        d.eps = o.adafactor_eps;
        d.threshold = o.adafactor_threshold;
        d.elements = static_cast<double>(p.spec.slice.global.elements());
      }
      apply_direction(*compute_, r.master, r.grad, r.low, sums, d);
      average(b, from, r.master, step.step);
    });
  }
}

void ParameterStore::update_lamb(const AdamwArgs& step, UpdateRule rule) {
  for (Bucket& b : buckets_) {
    if (b.kind.rule.rule != rule || !moves(b)) continue;
    each_parameter(b, stored_begin(b), stored_count(b), [&](const Parameter& p, int64_t from, int64_t n) {
      const Range r = range(b, from, n);
      lamb_direction(*compute_, r.master, r.moments[0], r.moments[1], r.grad, p.rule.decay,
                     args_of(p.rule, step));
    });
  }
  add_squares(rule);
  if (rule == UpdateRule::onebit_lamb) move_coefficients(false);
  move_along(step, rule);
}

void ParameterStore::update_adafactor(const AdamwArgs& step) {
  const double beta = 1 - std::pow(static_cast<double>(step.step), -layout_.optimizer.adafactor_decay);
  const double eps = layout_.precision.master == DType::f64 ? 0x1p-52 : 0x1p-23;
  const auto part_of = [](const Parameter& p, int64_t from, int64_t n) {
    const Slice& s = p.spec.slice;
    return MatrixPart{s.offset[0], s.offset[1], s.extent[1], s.begin + from - p.offset, n};
  };
  if (factors_.defined()) {
    fill_zero(*compute_, factor_sums_);
    for (Bucket& b : buckets_) {
      if (!b.kind.rule.factored || !adds(b)) continue;
      each_parameter(b, own_begin(b), b.own, [&](const Parameter& p, int64_t from, int64_t n) {
        const WholeTensor& t = tensors_[p.tensor];
        factor_sums(*compute_, factor_sums_.flat(t.sum, {t.rows + t.cols}), own_part(range(b, from, n).grad),
                    part_of(p, from, n), t.rows, step.grad_scale);
      });
    }
    reduce_sums(factor_sums_);
    for (const WholeTensor& t : tensors_)
      if (t.factor >= 0)
        factor_moments(*compute_, factors_.flat(t.factor, {t.rows + t.cols + 1}),
                       factor_sums_.flat(t.sum, {t.rows + t.cols}), t.rows, t.cols, beta);
  }
  for (Bucket& b : buckets_) {
    if (b.kind.rule.rule != UpdateRule::adafactor) continue;
    each_parameter(b, stored_begin(b), stored_count(b), [&](const Parameter& p, int64_t from, int64_t n) {
      const Range r = range(b, from, n);
      const WholeTensor& t = tensors_[p.tensor];
      if (p.rule.factored)
        factor_direction(*compute_, r.grad, factors_.flat(t.factor, {t.rows + t.cols + 1}),
                         part_of(p, from, n), t.rows, step.grad_scale, eps);
      else
        plain_direction(*compute_, r.grad, r.moments[0], beta, step.grad_scale, eps);
    });
  }
  add_squares(UpdateRule::adafactor);
  move_along(step, UpdateRule::adafactor);
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

void ParameterStore::update(const AdamwArgs& step) {
  sparsify();
  bool has[kUpdateRules] = {};
  next_window_ = 0;
  for (Bucket& b : buckets_) {
    const UpdateRule rule = b.kind.rule.rule;
    if (rule == UpdateRule::still) continue;
    has[static_cast<int>(rule)] = true;
    if (in_halves(rule) || rule == UpdateRule::sophia_h || frozen(b)) continue;
    if (moves(b))
      update_elements(b, step);
    else
      pass_windows(b);
    gather_values(b);
  }
  if (has[static_cast<int>(UpdateRule::lamb)]) update_lamb(step, UpdateRule::lamb);
  const bool after = is_onebit(layout_.optimizer.rule) && step_ > layout_.optimizer.freeze_step;
  if (after)
    update_onebit(step);
  else if (has[static_cast<int>(UpdateRule::onebit_lamb)])
    update_lamb(step, UpdateRule::onebit_lamb);
  if (has[static_cast<int>(UpdateRule::adafactor)]) update_adafactor(step);
  if (has[static_cast<int>(UpdateRule::muon)]) update_muon(step);
  if (has[static_cast<int>(UpdateRule::sophia_h)]) update_sophia(step);
  for (Bucket& b : buckets_)
    if (in_halves(b.kind.rule.rule) || b.kind.rule.rule == UpdateRule::sophia_h) gather_values(b);
  fetched_ahead_ = false;
  wait_for_values();
  require_values("end of the update");
}

/// On meta: every rank has again what its stage of ZeRO leaves it.
void ParameterStore::require_values(std::string_view when) const {
  if (!compute_->meta()) return;
  const ShardingPolicy sharding = layout_.sharding;
  for (const Bucket& b : buckets_)
    for (Axis a : {Axis::data, Axis::context, Axis::replica, Axis::expert})
      place_require(*compute_, when, sharding.shards_weights() ? b.value_piece : b.value, a,
                    b.kind.cut.has(a) || (sharding.shards_weights() && groups_->mesh.shard.has(a))
                        ? Placement::S(0)
                        : Placement::R());
}

}  // namespace ltrain
