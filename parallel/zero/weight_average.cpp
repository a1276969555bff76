#include "parallel/zero/weight_average.h"

#include <algorithm>

#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"

namespace ltrain {

WeightAverage::WeightAverage(const StoreContext& context, const ParameterLayout& layout, Weights& weights,
                             const OptimizerStates& states, const OffloadAccess& access, double decay)
    : c_(context),
      layout_(layout),
      weights_(weights),
      states_(states),
      access_(access),
      decay_(decay),
      averages_(layout.buckets().size()) {}

void WeightAverage::allocate(const Bucket& b) {
  if (!on()) return;
  Tensor& t = averages_[static_cast<size_t>(b.index)];
  t = c_.memory.allocate(MemoryKind::optimizer, fmt::format("average of weights, bucket {}", b.index),
                         c_.precision.wide(), {layout_.stored_count(b)});
  layout_.place_bucket(c_.compute, b, t, layout_.stores_pieces(b));
}

void WeightAverage::start() {
  access_.wait();
  for (const Bucket& b : layout_.buckets())
    if (of(b).defined()) states_.copy_master(b, of(b));
}

void WeightAverage::follow(const Bucket& b, int64_t from, const Tensor& master, int64_t step) {
  if (!of(b).defined()) return;
  const double t = static_cast<double>(step), decay = std::min(decay_, (1 + t) / (10 + t));
  scale_add(c_.compute, of(b).flat(from - layout_.stored_begin(b), {master.elements()}), decay, master,
            1 - decay);
}

/// Swaps a, which may be offloaded, and b, in parts.
void WeightAverage::swap_in_parts(const Tensor& a, const Tensor& b) {
  const int64_t n = a.elements(), most = std::min(n, kOffloadTouch / 16);
  Tensor between = c_.memory.allocate(MemoryKind::temporaries, "exchange of weights", a.dtype, {most});
  for (int64_t at = 0; at < n; at += most) {
    const Shape some{std::min(most, n - at)};
    const Tensor t = between.flat(0, some), of_a = access_.view(c_.compute, a.flat(at, some)),
                 of_b = b.flat(at, some);
    cast(c_.compute, t, of_a);
    cast(c_.compute, of_a, of_b);
    cast(c_.compute, of_b, t);
    access_.release();
  }
  c_.memory.release(between);
}

void WeightAverage::exchange(bool shown, const std::function<Tensor(const Bucket&)>& other) {
  access_.wait();
  for (const Bucket& b : layout_.buckets()) {
    const Tensor weights = weights_.updated(b), with = other(b);
    if (!with.defined()) continue;
    if (b.kind.derived())
      weights_.derive(b, shown ? with : states_.stored_master(b));
    else if (!states_.has_master(b))
      swap_in_parts(weights, with);
    else if (shown)
      access_.in_parts(weights.elements(), [&](int64_t at, int64_t n) {
        cast(c_.compute, access_.view(c_.compute, weights.flat(at, {n})), with.flat(at, {n}));
      });
    else
      states_.copy_master(b, weights);
    layout_.place_bucket(c_.compute, b, with, layout_.stores_pieces(b));
    weights_.end_writing(b);
  }
  for (const Bucket& b : layout_.buckets()) weights_.publish(b);
  weights_.wait_published();
}

}  // namespace ltrain
