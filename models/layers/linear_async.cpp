// Asynchronous tensor parallelism: matmuls of a tensor-parallel linear layer in chunks, each overlapping with
// the collective of another chunk (Wang et al., "Overlap Communication with Dependent Computation via
// Decomposition", ASPLOS 2023, doi:10.1145/3567955.3567959).
#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "models/layers/linear.h"

namespace ltrain {
namespace {

/// Chunks of a matmul with a summed result: 1 / chunks of its communication is exposed. All-reduces of fewer
/// bytes are less efficient than a matmul can hide.
constexpr int64_t kColumnParts = 4, kRowParts = 2;
/// Columns of a chunk are a multiple of this: 16 bytes of 16-bit elements, as tensor cores need.
constexpr int64_t kColumns = 8;

/// Largest number of chunks up to `most` that are equal multiples of `unit`.
int64_t parts_of(int64_t n, int64_t most, int64_t unit) {
  for (int64_t parts = most; parts > 1; --parts)
    if (n % (parts * unit) == 0) return parts;
  return 1;
}

}  // namespace

bool Linear::runs_in_parts(const Step& step) const {
  // In FP8 every matmul quantizes its operand again; generation has only a few rows; LoRA adds to a whole
  // matmul; weights in NF4 are dequantised for one.
  return step.async_tensor_parallel && step.groups.tensor.size() > 1 && !(step.fp8 && slot_ >= 0) &&
         !step.generation && lora_.empty() && !step.params.is_nf4(weight_);
}

void Linear::ring_product(Step& step, Tensor y, Tensor own, Tensor weight, const MatmulArgs& args,
                          Tensor whole) const {
  constexpr std::string_view kOp = "rows around a ring";
  const Group& g = step.groups.tensor;
  const int ranks = g.size(), rank = g.rank();
  const int64_t rows = own.shape[0];
  const auto owner_after = [&](int hops) { return (rank + ranks - hops) % ranks; };
  // A buffer is overwritten two hops later: its matmul was enqueued before that hop.
  Tensor buffers[2];
  if (!whole.defined())
    for (int i = 0; i < std::min(2, ranks - 1); ++i)
      buffers[i] =
          step.memory.allocate(MemoryKind::communication, "rows of the next rank", own.dtype, own.shape);
  std::vector<Tensor> pieces;
  Tensor here = own;
  for (int t = 0; t < ranks; ++t) {
    Tensor next;
    AsyncHandle arrived;
    if (t + 1 < ranks) {
      next = whole.defined() ? place_apart(step.compute, whole.narrow(owner_after(t + 1) * rows, rows),
                                           "rows of the next rank")
                             : buffers[t % 2];
      arrived = g.start_send_recv(step.compute, here, (rank + 1) % ranks, next, owner_after(1));
    }
    // Each rank now has another rank's rows; after all hops, all ranks have had all rows.
    const Tensor piece = place_apart(step.compute, here);
    place_as(step.compute, kOp, Axis::tensor, piece, Placement::S(0), Placement::R());
    product(step, y.narrow(owner_after(t) * rows, rows), piece, weight, args);
    pieces.push_back(piece);
    if (t + 1 == ranks) break;
    arrived.wait(step.compute);
    if (t > 0) place_spent(step.compute, here);
    here = next;
  }
  if (whole.defined()) {
    cast(step.compute, whole.narrow(rank * rows, rows), own);
    place_joined(step.compute, kOp, whole, pieces);
  }
  for (Tensor& t : buffers) step.release(t);
}

void Linear::summed_product(Step& step, Tensor y, Tensor a, Tensor weight, const MatmulArgs& args) const {
  const Group& g = step.groups.tensor;
  if (!step.cuts_rows()) {
    const int64_t parts = parts_of(y.shape[0], kRowParts, 1), rows = y.shape[0] / parts;
    std::vector<Tensor> done;
    AsyncHandle last;
    for (int64_t i = 0; i < parts; ++i) {
      done.push_back(place_apart(step.compute, y.narrow(i * rows, rows)));
      product(step, done.back(), a.narrow(i * rows, rows), weight, args);
      last = g.start_all_reduce(step.compute, done.back());
    }
    last.wait(step.compute);  // on one stream: all earlier ones are done
    return place_joined(step.compute, "sums of parts", y, done);
  }
  // Chunks of columns: one collective sums a rank's rows of each. Chunks of rows would not allow that.
  const int64_t parts = parts_of(y.shape[1], kColumnParts, kColumns), cols = y.shape[1] / parts;
  struct Part {
    Tensor partial, sum;
    AsyncHandle done;
  };
  const auto finish = [&](Part& p, int64_t i) {
    p.done.wait(step.compute);
    step.release(p.partial);
    copy_rectangles(step.compute, y, p.sum, {{y.shape[0], cols, 0, 0, 0, i * cols}});
    step.release(p.sum);
  };
  Part before;
  for (int64_t i = 0; i < parts; ++i) {
    Part p;
    p.partial = step.temporary("partial columns", {a.shape[0], cols});
    product(step, p.partial, a, weight.narrow(i * cols, cols), args);
    p.sum = step.temporary("summed columns", {y.shape[0], cols});
    p.done = g.start_reduce_scatter(step.compute, p.sum, p.partial);
    if (i > 0) finish(before, i - 1);
    before = p;
  }
  finish(before, parts - 1);
}

}  // namespace ltrain
