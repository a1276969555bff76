#include "models/layers/tensor_parallel.h"

namespace ltrain {

Tensor gather_rows(Step& step, Tensor x, const char* name) {
  if (!step.cuts_rows()) return x;
  return gather_start(step, step.groups.tensor, x, name).wait(step);
}

Gathered gather_start(Step& step, const Group& g, Tensor own, const char* name) {
  if (g.size() == 1) return {own, {}};
  const Shape shape{own.shape[0] * g.size(), own.shape[1]};
  Gathered out{step.memory.allocate(MemoryKind::temporaries, name, own.dtype, shape), {}};
  g.stream->wait(step.compute.record());
  g.comm->all_gather(*g.stream, out.whole, own);
  out.done = g.stream->record();
  return out;
}

Event scatter_sum_start(Step& step, const Group& g, Tensor out, Tensor whole) {
  if (g.size() == 1) return {};
  g.stream->wait(step.compute.record());
  g.comm->reduce_scatter(*g.stream, out, whole);
  return g.stream->record();
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
  if (g.size() == 1) return {};
  g.stream->wait(step.compute.record());
  RowSum sum;
  if (step.cuts_rows()) {
    g.comm->reduce_scatter(*g.stream, stream, whole);
    sum.partial = whole;
  } else {
    g.comm->all_reduce(*g.stream, stream);
  }
  sum.done = g.stream->record();
  return sum;
}

void RowSum::wait(Step& step) {
  step.compute.wait(done);
  step.release(partial);
}

}  // namespace ltrain
