#include "models/layers/tensor_parallel.h"

namespace ltrain {

Tensor gather_rows(Step& step, Tensor x, const char* name) {
  return gather_rows_start(step, x, name).wait(step);
}

Gathered gather_rows_start(Step& step, Tensor x, const char* name) {
  if (!step.cuts_rows()) return {x, {}};
  return gather_start(step, step.groups.tensor, x, name);
}

Gathered gather_start(Step& step, const Group& g, Tensor own, const char* name) {
  if (g.size() == 1) return {own, {}};
  const Shape shape{own.shape[0] * g.size(), own.shape[1]};
  Gathered out{step.memory.allocate(MemoryKind::temporaries, name, own.dtype, shape), {}};
  out.done = g.start_all_gather(step.compute, out.whole, own);
  return out;
}

AsyncHandle scatter_sum_start(Step& step, const Group& g, Tensor out, Tensor whole) {
  if (g.size() == 1) return {};
  return g.start_reduce_scatter(step.compute, out, whole);
}

Tensor summand_rows(Step& step, const Group& g, Tensor out, const char* name) {
  if (g.size() == 1) return out;
  return step.memory.allocate(MemoryKind::temporaries, name, out.dtype,
                              {out.shape[0] * g.size(), out.shape[1]});
}

void release_whole(Step& step, Tensor& whole, const Tensor& stream) {
  if (whole.data != stream.data || whole.record != stream.record) step.release(whole);
  whole = Tensor();
}

Tensor partial_rows(Step& step, Tensor stream, int64_t rows, const char* name) {
  return step.cuts_rows() ? step.temporary(name, {rows, stream.shape[1]}) : stream;
}

RowSum sum_rows_start(Step& step, Tensor stream, Tensor whole) {
  const Group& g = step.groups.tensor;
  if (step.cuts_rows()) return {g.start_reduce_scatter(step.compute, stream, whole), whole};
  return {g.start_all_reduce(step.compute, stream), Tensor()};
}

void RowSum::wait(Step& step) {
  done.wait(step.compute);
  step.release(partial);
}

}  // namespace ltrain
