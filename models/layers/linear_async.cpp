// Products of a tensor-parallel linear layer in parts, each beside the collective of another part
// (asynchronous tensor parallelism; Wang et al., "Overlap Communication with Dependent Computation via
// Decomposition", ASPLOS 2023, doi:10.1145/3567955.3567959).
#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "models/layers/linear.h"

namespace ltrain {
namespace {

/// Parts of a product whose result is summed: of its time on the links one in so many is exposed. All-reduces
/// of fewer bytes take longer for each of them than a product hides.
constexpr int64_t kColumnParts = 4, kRowParts = 2;
/// Columns of a part are a multiple of it: 16 bytes of 16-bit elements, as tensor cores want their operands.
constexpr int64_t kColumns = 8;

/// The most parts up to `most` that are equal multiples of `unit`.
int64_t parts_of(int64_t n, int64_t most, int64_t unit) {
  for (int64_t parts = most; parts > 1; --parts)
    if (n % (parts * unit) == 0) return parts;
  return 1;
}

}  // namespace

bool Linear::runs_in_parts(const Step& step) const {
  // In FP8 an operand is rounded with each product; texts that grow have a few rows.
  return step.async_tensor_parallel && step.groups.tensor.size() > 1 && !(step.fp8 && slot_ >= 0) &&
         !step.generation;
}

void Linear::ring_product(Step& step, Tensor y, Tensor own, Tensor weight, const MatmulArgs& args,
                          Tensor whole) const {
  constexpr std::string_view kOp = "rows around a ring";
  const Group& g = step.groups.tensor;
  const int ranks = g.size(), rank = g.rank();
  const int64_t rows = own.shape[0];
  const auto owner_after = [&](int hops) { return (rank + ranks - hops) % ranks; };
  // A piece is overwritten two hops later: its product was given to compute before that hop.
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
    // Each rank has another rank's rows now; when all hops are made, all have had all.
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
    last.wait(step.compute);  // of one stream: all before it are done
    return place_joined(step.compute, "sums of parts", y, done);
  }
  // Parts of columns: a rank's rows of each are summed by one collective, which rows of all ranks would not
  // be.
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
