// Loss with 3D tensor parallelism: the projection is a linear layer inwards, so that rows of logits are
// sharded over depth and column, and the vocabulary over row. A chunk's rows are gathered, then scattered
// again.
#include <algorithm>
#include <optional>

#include "kernels/matmul/matmul.h"
#include "kernels/meta/placement_rules.h"
#include "models/layers/head.h"
#include "models/tensor_parallel/tensor_parallel_3d.h"

namespace ltrain {

void Head::loss_3d(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const {
  const Way3d way = way_3d(step.groups, true);
  const int64_t ranks = way.rows.size(), rows = y.shape[0];  // rows of logits on this rank
  const int64_t chunk = std::max<int64_t>(1, chunk_rows(step.logits_chunk, rows * ranks, vocab_) / ranks);
  Gathered ys = gather_start(step, way.rows, y, "gathered rows");
  GatheredWeight weights = gather_weight_start(step, weight_, 1);
  Logits logits = make_logits(step, chunk);
  Tensor partial = summand_rows(step, way.sum, logits.values, "partial logits"), dpartial;
  std::optional<WeightSum3d> sum;
  if (step.training) {
    dpartial = summand_rows(step, way.rows, dy, "partial gradient");
    if (step.params.trains(weight_)) sum.emplace(step, step.params.accumulate(weight_), weight_, 1);
  }
  const Tensor whole = ys.wait(step), weight = weights.wait(step);
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const Tensor x = whole.narrow(first * ranks, n * ranks), products = partial.narrow(0, n * ranks);
    const Tensor out = logits.values.narrow(0, n);
    MatmulArgs project;
    project.trans_b = true;
    matmul(step.compute, products, x, weight, project);
    scatter_sum_start(step, way.sum, out, products).wait(step.compute);
    const int64_t first_row = first * ranks + way.sum.rank() * n;
    const Tensor mine = mb.targets.narrow(first_row, n);
    const Tensor targets = place_apart(step.compute, mine, "targets of a chunk");
    place_set(step.compute, targets, Axis::column, Placement::S(0));
    const Tensor grad = step.training ? logits.gradient.narrow(0, n) : Tensor();
    chunk_loss(step, mb, out, targets, first_row, grad);
    if (!step.training) continue;
    Gathered grads = gather_start(step, way.sum, grad, "gathered d logits");
    matmul(step.compute, dpartial.narrow(first * ranks, n * ranks), grads.wait(step), weight);
    if (sum) {
      MatmulArgs outer;
      outer.trans_a = true;
      outer.accumulate = sum->accumulate() || first > 0;
      matmul(step.compute, sum->summand(), grads.whole, x, outer);
    }
    release_whole(step, grads.whole, grad);
  }
  release_whole(step, partial, logits.values);
  release_logits(step, logits);
  release_whole(step, ys.whole, y);
  weights.release(step);
  if (!step.training) return;
  if (sum) sum->finish();
  weight_done(step);
  scatter_sum_start(step, way.rows, dy, dpartial).wait(step.compute);
  release_whole(step, dpartial, dy);
}

}  // namespace ltrain
