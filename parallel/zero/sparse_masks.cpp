#include "parallel/zero/sparse_masks.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/optimizer/sparsify.h"
#include "kernels/tensor/staging.h"

namespace ltrain {

SparseMasks::SparseMasks(const StoreContext& context, const ParameterLayout& layout, const StepRules& rules,
                         Weights& weights, const ElementUpdates& updates, const WeightAverage& average,
                         bool offloaded)
    : c_(context),
      layout_(layout),
      rules_(rules),
      weights_(weights),
      updates_(updates),
      average_(average),
      sparse_(static_cast<size_t>(layout.count())) {
  for (int id = 0; id < layout.count(); ++id) {
    const auto& p = layout.parameter(id);
    if (!is_sparse(rules.optimizer.sparsity, p.spec)) continue;
    sparse_[static_cast<size_t>(id)] = true;
    require_groups(rules.optimizer.sparsity, p.spec);
    if (!p.rule.trains())
      fail(ExitCode::usage,
           "sparsity.match: {} does not train, and a mask would change it; leave it out of sparsity.match",
           p.spec.name);
    if (!rules.optimizer.sparsity.moves()) require_one_choice(p);
    if (rules.optimizer.sparsity.gradient_estimator == GradientEstimator::mvue && p.spec.copied)
      fail(ExitCode::usage,
           "sparsity.gradient_estimator = mvue: {} has copies on neighbouring tensor ranks, because "
           "parallel.tensor is more than the key-value heads, and each has a part of its output gradient; "
           "nearest valid value: none, or leave it out of sparsity.match, or make parallel.tensor smaller",
           p.spec.name);
    LT_CHECK(!offloaded, "expected resident weights and states for sparse {}, got offloaded ones",
             p.spec.name);
    LT_CHECK(p.spec.place[Axis::depth] == Placement::R() && p.spec.place[Axis::row] == Placement::R() &&
                 p.spec.place[Axis::column] == Placement::R(),
             "expected sparse {} to be sharded by one axis at most, got tensor parallelism in 2D or 3D",
             p.spec.name);
  }
}

void SparseMasks::require_one_choice(const ParameterLayout::Parameter& p) const {
  if (const std::string_view why = optimizer_of(p.rule.rule).moves_zeros(rules_.optimizer); !why.empty())
    fail(ExitCode::usage, "sparsity.match: {} has {}, and {}; nearest valid value: adamw", p.spec.name,
         update_rule_name(p.rule.rule), why);
}

void SparseMasks::allocate() {
  if (rules_.optimizer.sparsity.moves())
    flips_ = c_.memory.allocate(MemoryKind::optimizer, "masks that changed", DType::f64, {1});
}

void SparseMasks::forget() {
  chosen_ = false;
  renewed_ = -1;
}

/// Calls f for the elements of every sparse matrix with states on this rank, in full groups.
template <class F>
void SparseMasks::each(F f) {
  for (const Bucket& b : layout_.buckets())
    layout_.each_parameter(
        b, layout_.stored_begin(b), layout_.stored_count(b), [&](int id, int64_t from, int64_t n) {
          if (!sparse_[static_cast<size_t>(id)]) return;
          const auto& p = layout_.parameter(id);
          const SparsePattern pattern = sparse_pattern(rules_.optimizer.sparsity, p.spec.shape[1]);
          LT_CHECK((from - p.offset) % pattern.unit() == 0 && n % pattern.unit() == 0,
                   "{}: expected full groups of {} elements, got elements {} to {}", p.spec.name,
                   pattern.unit(), from - p.offset, from - p.offset + n);
          f(b, updates_.elements(b, from, n), from, n, pattern);
        });
}

void SparseMasks::choose() {
  const SparsitySettings& s = rules_.optimizer.sparsity;
  if (!s.on() || s.moves() || chosen_ || c_.meta() || rules_.step < s.at_step) return;
  chosen_ = true;
  each([&](const Bucket& b, const Elements& e, int64_t from, int64_t n, const SparsePattern& p) {
    for (const Tensor& t : e.states) prune(c_.compute, t, e.master, p);
    if (average_.of(b).defined())
      prune(c_.compute, average_.of(b).flat(from - layout_.stored_begin(b), {n}), e.master, p);
    if (e.low.defined()) prune(c_.compute, e.low, e.master, p);
    prune(c_.compute, e.master, e.master, p);
    mask_by_zeros(c_.compute, e.grad, e.master);
  });
}

void SparseMasks::mask_gradients() {
  const SparsitySettings& s = rules_.optimizer.sparsity;
  if (!s.on() || s.moves() || (!c_.meta() && rules_.step <= s.at_step)) return;
  each([&](const Bucket&, const Elements& e, int64_t, int64_t, const SparsePattern&) {
    mask_by_zeros(c_.compute, e.grad, e.master);
  });
}

bool SparseMasks::masked(int id) const {
  if (!sparse_[static_cast<size_t>(id)]) return false;
  return c_.meta() || rules_.optimizer.sparsity.sparse_in(rules_.step);
}

bool SparseMasks::prunes_gradient(int id) const {
  return rules_.optimizer.sparsity.gradient_estimator == GradientEstimator::mvue && masked(id);
}

bool SparseMasks::skips_zeros(int id, int n) const {
  if (!rules_.optimizer.sparsity.skip_zeros) return false;
  for (int i = id; i < id + n; ++i)
    if (!masked(i)) return false;
  return true;
}

double SparseMasks::kept_share() const { return rules_.optimizer.sparsity.kept_share(); }

void SparseMasks::renew() {
  const SparsitySettings& s = rules_.optimizer.sparsity;
  if (!s.moves() || c_.meta() || rules_.step == renewed_) return;
  const bool first = renewed_ < 0, tail = rules_.step >= s.tail_begin();
  renewed_ = rules_.step;
  counted_ = 0;
  // Dense weights that a run goes on with get masks at once.
  const bool late = first && s.masks(rules_.step) && !s.renews(rules_.step) && !has_masks();
  if (late || s.renews(rules_.step) || rules_.step == s.tail_begin() || (tail && first)) choose_masks(tail);
}

bool SparseMasks::has_masks() {
  bool looked = false, found = false;
  each([&](const Bucket& b, const Elements&, int64_t from, int64_t, const SparsePattern& p) {
    if (std::exchange(looked, true)) return;
    const Tensor group = weights_.part(b, from, p.unit());  // a masked one has -0, dense weights have +0
    std::vector<char> bytes(static_cast<size_t>(group.bytes()));
    download(c_.compute, bytes.data(), group);
    const auto width = static_cast<size_t>(dtype_size(group.dtype));
    for (size_t at = 0; at < bytes.size(); at += width) {
      const std::string_view element(&bytes[at], width);
      found = found || (element.back() == char(0x80) && element.find_first_not_of('\0') == width - 1);
    }
  });
  return found || !looked;
}

/// Gradients are dead before a step: they hold what changed until it is counted.
void SparseMasks::choose_masks(bool all_kept) {
  fill_zero(c_.compute, flips_);
  each([&](const Bucket& b, const Elements& e, int64_t from, int64_t n, SparsePattern p) {
    if (all_kept) p = {.kept = 4, .group = 4};
    choose_mask(c_.compute, weights_.part(b, from, n), e.master, e.grad, p);
    const int64_t begin = std::max(from, layout_.own_begin(b)),
                  end = std::min(from + n, layout_.own_begin(b) + b.own);
    if (all_kept || begin >= end || !layout_.first_copy(b)) return;
    sum_squares(c_.compute, flips_, e.grad.flat(begin - from, {end - begin}));
    counted_ += end - begin;
  });
  weights_.end_update();
}

void SparseMasks::add_flips(const Tensor& sums) const {
  if (counted_ == 0 || c_.meta()) return;
  scale_add(c_.compute, sums.flat(0, {1}), 1, flips_, 1);
  fill_value(c_.compute, sums.flat(1, {1}), static_cast<double>(counted_));
}

void SparseMasks::decay(double grad_scale) {
  const SparsitySettings& s = rules_.optimizer.sparsity;
  if (!s.moves() || s.masked_decay == 0 || (!c_.meta() && !s.masks(rules_.step))) return;
  each([&](const Bucket& b, const Elements& e, int64_t from, int64_t n, const SparsePattern&) {
    masked_decay(c_.compute, e.grad, weights_.part(b, from, n), e.master, s.masked_decay / grad_scale);
  });
}

}  // namespace ltrain
