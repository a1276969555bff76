// Zero experts of an MoE layer, which give a token's row back as it is: their part of the output, and its
// backward.
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "models/moe/moe_layer.h"

namespace ltrain {
namespace {

/// Routing of `n` tokens of this rank to themselves. Its rows are tokens from 0 on.
Routing identity_of(Step& step, const Routing& r, int64_t n) {
  Routing own;
  own.weights = r.identity_weights;
  own.slots = own.sources = r.identity_rows.narrow(0, n);
  if (r.identity_weights.shape[0] == n) return own;
  own.weights = place_apart(step.compute, r.identity_weights.narrow(step.groups.tensor.rank() * n, n),
                            "weights of zero experts of the rank's rows");
  place_set(step.compute, own.weights, Axis::tensor, Placement::S(0));
  return own;
}

}  // namespace

void MoeLayer::identity_forward(Step& step, Tensor y, Tensor x, const Routing& routing) const {
  Tensor more = step.temporary("rows of zero experts", y.shape);
  combine_rows(step.compute, more, x, identity_of(step, routing, x.shape[0]), true);
  add_to(step.compute, y, more);
  step.release(more);
}

Tensor MoeLayer::identity_backward(Step& step, Tensor dx, Tensor dy, Tensor x, const Routing& routing) const {
  Tensor more = step.temporary("d rows of zero experts", dx.shape);
  Tensor own = step.memory.allocate(MemoryKind::temporaries, "d weights of zero experts", step.stat_type(),
                                    {x.shape[0], 1});
  combine_rows_backward(step.compute, more, own, dy, x, identity_of(step, routing, x.shape[0]));
  add_to(step.compute, dx, more);
  step.release(more);
  Tensor all = whole(step, own);
  if (all.shape[0] != own.shape[0]) step.release(own);
  return all;
}

}  // namespace ltrain
