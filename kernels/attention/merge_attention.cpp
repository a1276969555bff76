#include "kernels/attention/merge_attention.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void merge_attention(Stream& s, Tensor out, Tensor lse, Tensor block_out, Tensor block_lse) {
  LT_CHECK(lse.shape.rank == 3 && block_lse.shape == lse.shape && block_out.shape == out.shape &&
               out.rows() == lse.shape[0] * lse.shape[2] && out.cols() % lse.shape[1] == 0 &&
               (out.dtype == DType::f32 || out.dtype == DType::f64) && lse.dtype == out.dtype &&
               block_out.dtype == out.dtype && block_lse.dtype == out.dtype,
           "merge_attention: expected lse and block_lse (batch, heads, rows), out and block_out (batch * "
           "rows, heads * head_dim), all f32 or all f64; got out {} {}, lse {}, block_out {}, block_lse {}",
           dtype_name(out.dtype), to_string(out.shape), to_string(lse.shape), to_string(block_out.shape),
           to_string(block_lse.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("merge_attention", OpClass::elementwise, 3.0 * out.elements(), {out, lse},
                             {out, lse, block_out, block_lse}));
    place(s, "merge_attention", Rule::elementwise, {out, lse}, {out, lse, block_out, block_lse});
    return;
  }
  LT_LAUNCH(s, merge_attention, out.dtype, out.data, lse.data, block_out.data, block_lse.data, lse.shape[0],
            lse.shape[1], lse.shape[2], out.cols() / lse.shape[1]);
}

}  // namespace ltrain
