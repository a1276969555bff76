#include "models/tensor_parallel/summa.h"

#include <array>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

/// Blocks of a group's ranks, one after the other, each broadcast to all while the previous one is used.
class Panels {
 public:
  Panels(Step& step, const Group& group, Tensor own, const char* name)
      : step_(step), group_(group), own_(own) {
    if (group.size() == 1) return;
    for (Tensor& t : buffers_) t = step.memory.allocate(MemoryKind::temporaries, name, own.dtype, own.shape);
    start(0);
  }
  /// Rank t's block, for compute; t increases by 1 with each call. Starts to fetch the next.
  Tensor take(int t) {
    if (group_.size() == 1) return own_;
    const size_t at = static_cast<size_t>(t % 2);
    done_[at].wait(step_.compute);
    const Tensor panel = panels_[at];
    if (t + 1 < group_.size()) start(t + 1);
    return panel;
  }
  void release() {
    for (Tensor& t : buffers_)
      if (t.defined()) step_.memory.release(t);
  }

 private:
  void start(int t) {
    const size_t at = static_cast<size_t>(t % 2);
    Tensor& panel = panels_[at];
    panel = buffers_[at];
    if (t == group_.rank()) {
      panel = place_apart(step_.compute, own_);
    } else {
      place_spent(step_.compute, panel);
    }
    done_[at] = group_.start_broadcast(step_.compute, panel, own_, t);
  }

  Step& step_;
  const Group& group_;
  Tensor own_;
  std::array<Tensor, 2> buffers_, panels_;
  std::array<AsyncHandle, 2> done_;
};

/// Matmuls whose sums go to one rank of a group each.
class Sums {
 public:
  /// `own`: destination of this rank's sum. `dim`: dim of the full tensor of which it is a slice.
  Sums(Step& step, const Group& group, Axis axis, Tensor own, int dim, const char* name)
      : step_(step), group_(group), axis_(axis), own_(own), dim_(dim) {
    if (group.size() == 1) return;
    for (Tensor& t : buffers_) t = step.memory.allocate(MemoryKind::temporaries, name, own.dtype, own.shape);
  }
  /// Memory for this rank's summand of rank t's sum. The rank waits in its own round, too, which needs no
  /// buffer: a turn of overlapped micro-batches ends at a wait (micro_batch_overlap.h), at the same point on
  /// all ranks.
  Tensor summand(int t) {
    const size_t at = static_cast<size_t>(t % 2);
    done_[at].wait(step_.compute);
    return t == group_.rank() ? own_ : buffers_[at];
  }
  /// Called when the summand is written: starts the sum.
  void sum(int t) {
    if (group_.size() == 1) return;
    const size_t at = static_cast<size_t>(t % 2);
    const Tensor product = t == group_.rank() ? own_ : buffers_[at];
    done_[at] = group_.start_reduce(step_.compute, product, t);
    // On every rank, so that a missing reduction is noticed: the tensor has a block of the sum, or nothing
    // now.
    place_as(step_.compute, "the block of a sum", axis_, product, Placement::V(), Placement::S(dim_));
    if (t != group_.rank()) place_spent(step_.compute, product);
  }
  void finish() {
    for (const AsyncHandle& d : done_) d.wait(step_.compute);
    for (Tensor& t : buffers_)
      if (t.defined()) step_.memory.release(t);
  }

 private:
  Step& step_;
  const Group& group_;
  Axis axis_;
  Tensor own_;
  int dim_;
  std::array<Tensor, 2> buffers_;
  std::array<AsyncHandle, 2> done_;
};

}  // namespace

void summa_outer(Step& step, Tensor y, Tensor x, Tensor b, const MatmulArgs& args) {
  const Groups& g = step.groups;
  Panels xs(step, g.column, x, "block of activations"), bs(step, g.row, b, "block of weights");
  // 16-bit types accumulate steps in f32, so that there is one rounding.
  const bool wide = g.column.size() > 1 && is_half(y.dtype);
  Tensor sum = y;
  if (wide) sum = step.memory.allocate(MemoryKind::temporaries, "sum of products", DType::f32, y.shape);
  for (int t = 0; t < g.column.size(); ++t) {
    const Tensor left = xs.take(t), right = bs.take(t);
    MatmulArgs a = args;
    a.accumulate = t > 0;
    if (t > 0 || wide) a.bias = Tensor();
    matmul(step.compute, sum, left, right, a);
  }
  xs.release();
  bs.release();
  if (!wide) return;
  cast(step.compute, y, sum);
  step.memory.release(sum);
  if (args.bias.defined()) add_bias(step.compute, y, args.bias);
}

void summa_inner(Step& step, Tensor y, Tensor x, Tensor b, const MatmulArgs& args) {
  const Groups& g = step.groups;
  Panels bs(step, g.row, b, "block of weights");
  Sums sums(step, g.column, Axis::column, y, 1, "block of products");
  for (int t = 0; t < g.row.size(); ++t) {
    matmul(step.compute, sums.summand(t), x, bs.take(t), args);
    sums.sum(t);
  }
  sums.finish();
  bs.release();
}

void summa_weight(Step& step, const GradBuffer& to, Tensor a, Tensor c, bool swapped) {
  const Groups& g = step.groups;
  Panels panels(step, g.column, a, "block of activations");
  const bool many = g.row.size() > 1, apart = many && to.accumulate;
  Tensor own = to.tensor;
  if (apart)
    own = step.memory.allocate(MemoryKind::temporaries, "sum of a weight gradient", to.tensor.dtype,
                               to.tensor.shape);
  Sums sums(step, g.row, Axis::row, own, swapped ? 1 : 0, "block of weight gradients");
  MatmulArgs args;
  args.trans_a = true;
  args.accumulate = !many && to.accumulate;
  for (int t = 0; t < g.row.size(); ++t) {
    const Tensor panel = panels.take(t);
    matmul(step.compute, sums.summand(t), swapped ? c : panel, swapped ? panel : c, args);
    sums.sum(t);
  }
  sums.finish();
  panels.release();
  if (!apart) return;
  add_to(step.compute, to.tensor, own);
  step.memory.release(own);
}

}  // namespace ltrain
