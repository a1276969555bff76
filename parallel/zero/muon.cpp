// Muon (Jordan et al., 2024): the direction of a matrix is its momentum, made nearly orthogonal by a
// Newton-Schulz iteration.
//
// The iteration needs the whole matrix. The ranks that share a bucket gather its momentum and each works on
// some of its matrices, zeros standing for the others; the sum is the whole again. A matrix that the tensor
// axis cuts stays cut: with rows cut, X^T X is a sum over the parts, and X (X^T X) needs no more than that
// sum; with columns cut, X X^T is.
#include <algorithm>

#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/matmul.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/optimizer/momentum.h"
#include "parallel/zero/parameter_store.h"

namespace ltrain {
namespace {

// Coefficients of the quintic that Jordan et al. chose: it lifts small singular values fast.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

}  // namespace

void ParameterStore::orthogonalize(const Parameter& p, Tensor x) {
  const Placement lies = p.spec.place[Axis::tensor];
  const Group& t = groups_->tensor;
  const bool cut = t.size() > 1 && !(lies == Placement::R());
  const int64_t rows = x.shape[0], cols = x.shape[1];
  const bool right = cut ? lies == Placement::S(0) : rows > cols;  // multiply by X^T X from the right
  const double once = groups_->copies.size() > 1 && p.spec.copied ? 1.0 / groups_->copies.size() : 1.0;
  const auto sum = [&](Tensor of_parts) {
    if (!cut) return;
    t.stream->wait(compute_->record());
    t.comm->all_reduce(*t.stream, of_parts);
    compute_->wait(t.stream->record());
    if (once != 1.0) scale_add(*compute_, of_parts, once, {}, 0);
  };
  fill_zero(*compute_, length_);
  const Tensor flat = place_apart(*compute_, x, "matrix of Muon");
  if (compute_->meta() && cut) place_set(*compute_, flat, Axis::tensor, Placement::S(0));
  sum_squares(*compute_, length_, flat);
  sum(length_);
  scale_add(*compute_, x, 1.0, {}, 0, length_);
  const int64_t side = right ? cols : rows;
  const auto make = [&](const char* name, Shape shape) {
    return memory_->allocate(MemoryKind::temporaries, name, x.dtype, shape);
  };
  Tensor gram = make("gram of Muon", {side, side}), both = make("polynomial of Muon", {side, side}),
         y = make("product of Muon", x.shape);
  for (int i = 0; i < layout_.optimizer.muon_steps; ++i) {
    MatmulArgs transposed;
    (right ? transposed.trans_a : transposed.trans_b) = true;
    matmul(*compute_, gram, x, x, transposed);
    sum(gram);
    matmul(*compute_, both, gram, gram);
    scale_add(*compute_, both, kC, gram, kB);
    if (right) {
      matmul(*compute_, y, x, both);
    } else {
      matmul(*compute_, y, both, x);
    }
    scale_add(*compute_, x, kA, y, 1.0);
  }
  for (Tensor* temporary : {&gram, &both, &y}) memory_->release(*temporary);
}

void ParameterStore::update_muon(const AdamwArgs& step) {
  const OptimizerSettings& o = layout_.optimizer;
  const Group& g = groups_->shard;
  const ShardingPolicy sharding = layout_.sharding;
  MomentumArgs m;
  m.rule = MomentumRule::muon;
  m.momentum = o.muon_momentum;
  m.nesterov = true;
  m.grad_scale = step.grad_scale;
  std::vector<double> load(g.size());  // matrices go to whoever has least to do, on all ranks alike
  for (Bucket& b : buckets_) {
    if (b.kind.rule.rule != UpdateRule::muon || !moves(b)) continue;
    const int64_t begin = stored_begin(b), n = stored_count(b);
    const Range r = range(b, begin, n);
    momentum_update(*compute_, r.master, r.moments[0], r.grad, {}, false, m);
    Tensor whole = b.grad;
    if (sharding.shards_gradients()) {
      whole =
          memory_->allocate(MemoryKind::communication, "directions of Muon", b.grad_piece.dtype, {b.padded});
      if (compute_->meta()) whole.record->place = b.grad_piece.record->place;
    }
    if (g.size() > 1 && sharding.shards_optimizer()) {
      g.stream->wait(compute_->record());
      g.comm->all_gather(*g.stream, whole, r.grad);
      compute_->wait(g.stream->record());
    } else if (sharding.shards_gradients()) {
      cast(*compute_, whole, r.grad);
    }
    for (int id : members(b)) {
      const Parameter& p = parameters_[id];
      const Shape& shape = p.spec.shape;
      const auto owner = std::min_element(load.begin(), load.end());
      *owner += static_cast<double>(shape.elements()) * static_cast<double>(std::min(shape[0], shape[1]));
      const Tensor x = place_apart(*compute_, whole.flat(p.offset, shape), p.spec.name);
      if (owner - load.begin() != g.rank()) {
        fill_zero(*compute_, x);
        continue;
      }
      if (compute_->meta())
        for (Axis a : kTensorAxes)
          if (groups_->size(a) > 1) place_set(*compute_, x, a, p.spec.place[a]);
      orthogonalize(p, x);
    }
    if (g.size() > 1) {
      if (compute_->meta()) place_set(*compute_, whole, groups_->mesh.shard, Placement::P());
      g.stream->wait(compute_->record());
      if (!sharding.shards_optimizer())
        g.comm->all_reduce(*g.stream, whole);
      else
        g.comm->reduce_scatter(*g.stream, r.grad, whole);
      compute_->wait(g.stream->record());
    } else if (sharding.shards_gradients()) {
      cast(*compute_, r.grad, whole);
    }
    if (sharding.shards_gradients()) memory_->release(whole);
  }
  move_along(step, UpdateRule::muon);
}

}  // namespace ltrain
