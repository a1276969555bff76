// Weight gradients of sparse matrices from sparse output gradients (Hu et al., arXiv:2404.01847).
#include <numeric>

#include "kernels/matmul/sparse/prune_unbiased.h"
#include "models/layers/linear.h"

namespace ltrain {

bool Linear::prunes_gradient(const Step& step) const {
  for (int i = 0; i < parts_; ++i)
    if (step.params.prunes_gradient(weight_ + i)) return true;
  return false;
}

Linear::GradientRandom Linear::gradient_random(const Step& step) const {
  GradientRandom random{.lora = lora_dropout(step), .pruned = {}};
  if (!prunes_gradient(step)) return random;
  LT_CHECK(step.batch, "{}: expected a running block where output gradients are pruned, got none",
           step.params.spec(weight_).name);
  const MicroBatch& mb = *step.batch;
  random.pruned = step.random("", mb, cut_ == LinearSharding::whole ? step.row_map(mb) : step.whole_rows(mb));
  return random;
}

Tensor Linear::pruned_gradient(Step& step, Tensor dy, RowRandom random) const {
  const Tensor out = step.temporary("sparse gradient", dy.shape);
  std::vector<CopyRectangle> dense;
  int64_t col = 0;
  for (int i = 0; i < parts_; ++i) {
    const ParameterSpec& spec = step.params.spec(weight_ + i);
    const int64_t cols = spec.shape[0];
    if (!step.params.prunes_gradient(weight_ + i)) {
      dense.push_back({dy.shape[0], cols, 0, col, 0, col});
      col += cols;
      continue;
    }
    // Channels are rows of the named tensor, under every tensor parallelism. A run of them is one of equal
    // parts, so that one that does not begin at a multiple of its width is several.
    const int64_t first = spec.slice.offset[0], all = spec.slice.global[0];
    const int64_t run = std::gcd(std::gcd(first, all), cols);
    random.stream = hash_name(spec.name + ".output_gradient");
    random.parts = static_cast<int>(all / run);
    for (int64_t done = 0; done < cols; done += run) {
      random.part = static_cast<int>((first + done) / run);
      prune_unbiased(step.compute, out, dy, random, {col + done, run});
    }
    col += cols;
  }
  LT_CHECK(col == dy.shape[1], "expected an output gradient of {} columns, got {}", col, to_string(dy.shape));
  if (!dense.empty()) copy_rectangles(step.compute, out, dy, dense);
  return out;
}

}  // namespace ltrain
