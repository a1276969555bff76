#include "parallel/zero/sparse_masks.h"

#include "kernels/optimizer/sparsify.h"

namespace ltrain {

SparseMasks::SparseMasks(const StoreContext& context, const ParameterLayout& layout, const StepRules& rules,
                         const ElementUpdates& updates, const WeightAverage& average, bool offloaded)
    : c_(context),
      layout_(layout),
      rules_(rules),
      updates_(updates),
      average_(average),
      sparse_(static_cast<size_t>(layout.count())) {
  for (int id = 0; id < layout.count(); ++id) {
    const auto& p = layout.parameter(id);
    if (!is_sparse(rules.optimizer.sparsity, p.spec)) continue;
    sparse_[static_cast<size_t>(id)] = true;
    require_fours(p.spec);
    if (!p.rule.trains())
      fail(ExitCode::usage,
           "sparsity.match: {} is frozen, and to set half of it to zero changes it; leave it out of "
           "sparsity.match, or of optimizer.frozen",
           p.spec.name);
    if (const std::string_view why = optimizer_of(p.rule.rule).moves_zeros(rules.optimizer); !why.empty())
      fail(ExitCode::usage, "sparsity.match: {} has {}, and {}; nearest valid value: adamw", p.spec.name,
           update_rule_name(p.rule.rule), why);
    LT_CHECK(!offloaded, "expected resident weights and states for sparse {}, got offloaded ones",
             p.spec.name);
    LT_CHECK(p.spec.place[Axis::depth] == Placement::R() && p.spec.place[Axis::row] == Placement::R() &&
                 p.spec.place[Axis::column] == Placement::R(),
             "expected sparse {} to be sharded by one axis at most, got tensor parallelism in 2D or 3D",
             p.spec.name);
  }
}

/// Calls f for the elements of every sparse matrix with states on this rank, in full groups of four.
template <class F>
void SparseMasks::each(F f) {
  for (const Bucket& b : layout_.buckets())
    layout_.each_parameter(b, layout_.stored_begin(b), layout_.stored_count(b),
                           [&](int id, int64_t from, int64_t n) {
                             if (!sparse_[static_cast<size_t>(id)]) return;
                             const auto& p = layout_.parameter(id);
                             LT_CHECK((from - p.offset) % 4 == 0 && n % 4 == 0,
                                      "{}: expected full groups of four elements, got elements {} to {}",
                                      p.spec.name, from - p.offset, from - p.offset + n);
                             f(b, updates_.elements(b, from, n), from, n);
                           });
}

void SparseMasks::choose() {
  const SparsitySettings& s = rules_.optimizer.sparsity;
  if (!s.on() || chosen_ || c_.meta() || rules_.step < s.at_step) return;
  chosen_ = true;
  each([&](const Bucket& b, const Elements& e, int64_t from, int64_t n) {
    for (const Tensor& t : e.states) prune_2_4(c_.compute, t, e.master);
    if (average_.of(b).defined())
      prune_2_4(c_.compute, average_.of(b).flat(from - layout_.stored_begin(b), {n}), e.master);
    if (e.low.defined()) prune_2_4(c_.compute, e.low, e.master);
    prune_2_4(c_.compute, e.master, e.master);
    mask_by_zeros(c_.compute, e.grad, e.master);
  });
}

void SparseMasks::mask_gradients() {
  const SparsitySettings& s = rules_.optimizer.sparsity;
  if (!s.on() || (!c_.meta() && rules_.step <= s.at_step)) return;
  each([&](const Bucket&, const Elements& e, int64_t, int64_t) {
    mask_by_zeros(c_.compute, e.grad, e.master);
  });
}

}  // namespace ltrain
