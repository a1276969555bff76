#include "models/tensor_parallel.h"

namespace ltrain {

Tensor gather_rows(Step& step, Tensor x, const char* name) {
  if (!step.cuts_rows()) return x;
  const Group& g = step.groups.tensor;
  Tensor whole = step.temporary(name, {x.shape[0] * g.size(), x.shape[1]});
  g.stream->wait(step.compute.record());
  g.comm->all_gather(*g.stream, whole, x);
  step.compute.wait(g.stream->record());
  return whole;
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
  if (!g.many()) return {};
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
