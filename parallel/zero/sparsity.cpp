// Matrices of which two of each four neighbours along the input dim are zero, from a step on. No mask is
// kept: zeros are the mask. A weight whose moments and gradient are zero stays so under every rule that
// looks at one element at a time, and so what is in a checkpoint is all that there is to resume from.
#include "kernels/optimizer/sparsify.h"
#include "parallel/zero/parameter_store.h"

namespace ltrain {

void ParameterStore::choose_sparse() {
  const SparsitySettings& s = layout_.optimizer.sparsity;
  for (Parameter& p : parameters_) {
    p.sparse = layout_.for_training && is_sparse(s, p.spec);
    if (!p.sparse) continue;
    require_fours(p.spec);
    if (const std::string_view why = optimizer_of(p.rule.rule).moves_zeros(); !why.empty())
      fail(ExitCode::usage, "sparsity.match: {} has {}, and {}; nearest valid value: adamw", p.spec.name,
           update_rule_name(p.rule.rule), why);
    LT_CHECK(layout_.offload.fraction == 0 && layout_.offload.params == 0,
             "{} is sparse, and what lies in offload memory is not masked", p.spec.name);
    LT_CHECK(p.spec.place[Axis::depth] == Placement::R() && p.spec.place[Axis::row] == Placement::R() &&
                 p.spec.place[Axis::column] == Placement::R(),
             "{} is sparse, and cut by more than one axis", p.spec.name);
  }
}

/// What this rank has states of, of every sparse matrix of a bucket: whole fours.
template <class F>
void ParameterStore::each_sparse(Bucket& b, F f) {
  each_parameter(b, stored_begin(b), stored_count(b), [&](const Parameter& p, int64_t from, int64_t n) {
    if (!p.sparse) return;
    LT_CHECK((from - p.offset) % 4 == 0 && n % 4 == 0, "{}: elements {} to {} are no whole fours",
             p.spec.name, from - p.offset, from - p.offset + n);
    f(range(b, from, n), from, n);
  });
}

/// Of a step that is made: the choice, once, before the update, whose gather brings it to other ranks. In a
/// run that goes on it finds what it would choose, and changes nothing.
void ParameterStore::sparsify() {
  const SparsitySettings& s = layout_.optimizer.sparsity;
  if (!s.on() || sparse_ || compute_->meta() || step_ < s.at_step) return;
  sparse_ = true;
  for (Bucket& b : buckets_)
    each_sparse(b, [&](const Elements& r, int64_t from, int64_t n) {
      for (const Tensor& t : r.states) prune_2_4(*compute_, t, r.master);
      if (b.average.defined()) prune_2_4(*compute_, b.average.flat(from - stored_begin(b), {n}), r.master);
      if (r.low.defined()) prune_2_4(*compute_, r.low, r.master);
      prune_2_4(*compute_, r.master, r.master);
      mask_by_zeros(*compute_, r.grad, r.master);
    });
}

/// After the step of the choice, before squares of gradients are taken. A plan is of such steps.
void ParameterStore::mask_gradients() {
  const SparsitySettings& s = layout_.optimizer.sparsity;
  if (!s.on() || (!compute_->meta() && step_ <= s.at_step)) return;
  for (Bucket& b : buckets_)
    each_sparse(b, [&](const Elements& r, int64_t, int64_t) { mask_by_zeros(*compute_, r.grad, r.master); });
}

}  // namespace ltrain
