// 3D tensor parallelism (arXiv:2105.14450): each of the three matrices of a matmul is sharded over all axes,
// and gathered over one (x, W) or reduce-scattered over one (y). Gathered matrices are released at once, and
// gathered again by backward: more communication, but no rank ever keeps more than its part.
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/matmul.h"
#include "kernels/meta/placement_rules.h"
#include "models/layers/linear.h"
#include "models/layers/tensor_parallel.h"
#include "models/tensor_parallel/tensor_parallel_3d.h"

namespace ltrain {

void Linear::forward_3d(Step& step, Tensor y, Tensor x) const {
  const Way3d way = way_3d(step.groups, cut_ == LinearSharding::column);
  Gathered xs = gather_start(step, way.rows, x, "gathered rows");
  GatheredWeight w = gather_weight_start(step, weight_, parts_);
  const Tensor partial = summand_rows(step, way.sum, y, "partial rows");
  MatmulArgs args;
  args.trans_b = true;
  matmul(step.compute, partial, xs.wait(step), w.wait(step), args);
  scatter_sum_start(step, way.sum, y, partial).wait(step.compute);
  release_whole(step, xs.whole, x);
  w.release(step);
  Tensor spent = partial;
  release_whole(step, spent, y);
  if (bias_ >= 0) add_bias(step.compute, y, bias(step));  // once, after the sum
}

void Linear::backward_3d(Step& step, Tensor dx, Tensor dy, Tensor x) const {
  const Way3d way = way_3d(step.groups, cut_ == LinearSharding::column);
  Gathered dys = gather_start(step, way.sum, dy, "gathered gradient");
  AsyncHandle summed;
  Tensor partial;
  if (dx.defined()) {
    GatheredWeight w = gather_weight_start(step, weight_, parts_);
    partial = summand_rows(step, way.rows, dx, "partial gradient");
    matmul(step.compute, partial, dys.wait(step), w.wait(step));
    summed = scatter_sum_start(step, way.rows, dx, partial);  // overlaps with the weight gradient
    w.release(step);
  }
  bias_backward(step, dy);
  const bool trains = step.params.trains(weight_);
  if (trains && step.deferred) {
    step.deferred->add(
        [this, dy, x](Step& s) {
          Gathered again =
              gather_start(s, way_3d(s.groups, cut_ == LinearSharding::column).sum, dy, "gathered gradient");
          weight_backward_3d(s, again.wait(s), x);
          release_whole(s, again.whole, dy);
        },
        {dy, x});
  } else if (trains) {
    weight_backward_3d(step, dys.wait(step), x);
  }
  dys.done.wait(step.compute);
  release_whole(step, dys.whole, dy);
  summed.wait(step.compute);
  if (dx.defined()) release_whole(step, partial, dx);
}

void Linear::weight_backward_3d(Step& step, Tensor dy, Tensor x) const {
  const Way3d way = way_3d(step.groups, cut_ == LinearSharding::column);
  Gathered xs = gather_start(step, way.rows, x, "gathered rows");
  const GradBuffer to = step.params.accumulate(weight_, parts_);
  MatmulArgs args;
  args.trans_a = true;
  WeightSum3d sum(step, to, weight_, parts_);
  args.accumulate = sum.accumulate();
  matmul(step.compute, sum.summand(), dy, xs.wait(step), args);
  sum.finish();
  release_whole(step, xs.whole, x);
  step.params.grad_ready(weight_);
}

}  // namespace ltrain
