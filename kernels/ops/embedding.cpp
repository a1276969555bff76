#include "kernels/ops/embedding.h"

#include "kernels/core/placement_rules.h"

namespace ltrain {

void embedding_forward(Stream& s, Tensor y, Tensor tokens, Tensor table, Tensor positions, int64_t seq) {
  LT_CHECK(tokens.elements() == y.rows() && table.cols() == y.cols() && y.rows() % seq == 0 &&
               (!positions.defined() || positions.shape[0] >= seq),
           "embedding of {} tokens into {}", tokens.elements(), to_string(y.shape));
  if (s.meta()) {
    s.meta()->add(s,
                  op_cost("embedding_forward", OpClass::elementwise, 1.0 * y.elements(), {y}, {y, tokens}));
    place(s, "embedding_forward", Rule::elementwise, {y}, {tokens, table});
    if (positions.defined()) place(s, "embedding_forward", Rule::elementwise, {y}, {y, positions});
    return;
  }
  s.launch([=] {
    const int32_t* ids = tokens.ptr<int32_t>();
    for (int64_t i = 0; i < tokens.elements(); ++i)
      if (ids[i] < 0 || ids[i] >= table.shape[0])
        fail(ExitCode::data, "token {} at position {} of the batch is outside the vocabulary of {}", ids[i],
             i, table.shape[0]);
    LT_CPU(embedding_forward_cpu)
    (y.dtype, y.data, ids, table.data, positions.data, y.rows(), y.cols(), table.shape[0], seq);
  });
}

void embedding_backward(Stream& s, Tensor dtable, Tensor dy, Tensor tokens, bool accumulate) {
  LT_CHECK(tokens.elements() == dy.rows() && dtable.cols() == dy.cols(), "embedding backward {} into {}",
           to_string(dy.shape), to_string(dtable.shape));
  if (s.meta()) {
    OpCost cost = op_cost("embedding_backward", OpClass::elementwise, 1.0 * dy.elements(), {}, {dy, dy, dy});
    if (!accumulate) cost.bytes += static_cast<double>(dtable.bytes());
    cost.dtype = dy.dtype;
    s.meta()->add(s, cost);
    place(s, "embedding_backward", Rule::sum_rows, {dtable}, {dy, tokens}, accumulate);
    return;
  }
  s.launch([=] {
    LT_CPU(embedding_backward_cpu)
    (dy.dtype, dtable.data, dy.data, tokens.ptr<int32_t>(), dy.rows(), dy.cols(), dtable.shape[0],
     accumulate);
  });
}

void position_backward(Stream& s, Tensor dpositions, Tensor dy, int64_t seq, bool accumulate) {
  LT_CHECK(dpositions.shape[0] >= seq && dpositions.cols() == dy.cols(), "position backward {} into {}",
           to_string(dy.shape), to_string(dpositions.shape));
  if (s.meta()) {
    s.meta()->add(
        s, op_cost("position_backward", OpClass::elementwise, 1.0 * dy.elements(), {dpositions}, {dy}));
    place(s, "position_backward", Rule::sum_rows, {dpositions}, {dy}, accumulate);
    return;
  }
  s.launch([=] {
    LT_CPU(position_backward_cpu)
    (dy.dtype, dpositions.data, dy.data, dy.rows(), dy.cols(), seq, dpositions.shape[0], accumulate);
  });
}

}  // namespace ltrain
