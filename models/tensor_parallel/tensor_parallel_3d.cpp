#include "models/tensor_parallel/tensor_parallel_3d.h"

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

/// `n` rows of t from `first` on, with their own record, marked as empty.
Tensor empty_rows(Step& step, Tensor t, int64_t first, int64_t n) {
  const Tensor rows = place_apart(step.compute, t.narrow(first, n));
  place_spent(step.compute, rows);
  return rows;
}

/// Gives `whole` the placement of its parts.
void join(Step& step, Tensor whole, const std::vector<Tensor>& parts) {
  for (size_t i = 0; i < parts.size(); ++i)
    place(step.compute, "parts of a weight", Rule::linear, {whole}, {parts[i]}, /*accumulate=*/i > 0);
}

}  // namespace

GatheredWeight gather_weight_start(Step& step, int weight, int parts) {
  const Group& g = step.groups.depth;
  GatheredWeight out;
  const Tensor own = step.params.value(weight, parts);
  if (g.size() == 1) {
    out.whole = own;
    out.own = true;
    return out;
  }
  out.whole = step.temporary("gathered weight", {own.shape[0] * g.size(), own.shape[1]});
  out.done = g.start(step.compute, [&](Stream& s) {
    int64_t first = 0;
    for (int i = 0; i < parts; ++i) {
      const Tensor part = step.params.value(weight + i);
      const int64_t n = part.shape[0] * g.size();
      out.gathered.push_back(empty_rows(step, out.whole, first, n));
      g.all_gather(s, out.gathered.back(), part);
      first += n;
    }
  });
  return out;
}

Tensor GatheredWeight::wait(Step& step) {
  done.wait(step.compute);
  join(step, whole, gathered);
  return whole;
}

WeightSum3d::WeightSum3d(Step& step, const GradBuffer& to, int weight, int parts)
    : step_(step),
      group_(step.groups.depth),
      to_(to),
      weight_(weight),
      parts_(parts),
      whole_(summand_rows(step, group_, to.tensor, "summand of a weight gradient")) {}

void WeightSum3d::finish() {
  if (group_.size() == 1) return;
  Tensor sum = to_.tensor;
  if (to_.accumulate)
    sum = step_.memory.allocate(MemoryKind::temporaries, "sum of a weight gradient", sum.dtype, sum.shape);
  std::vector<Tensor> summed;
  const AsyncHandle done = group_.start(step_.compute, [&](Stream& s) {
    int64_t first = 0;
    for (int i = 0; i < parts_; ++i) {
      const int64_t n = step_.params.spec(weight_ + i).shape[0], ranks = group_.size();
      summed.push_back(empty_rows(step_, sum, first, n));
      group_.reduce_scatter(s, summed.back(), whole_.narrow(first * ranks, n * ranks));
      first += n;
    }
  });
  done.wait(step_.compute);
  join(step_, sum, summed);
  if (to_.accumulate) {
    add_to(step_.compute, to_.tensor, sum);
    step_.memory.release(sum);
  }
  step_.memory.release(whole_);
}

}  // namespace ltrain
