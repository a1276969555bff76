#include "kernels/attention/rope.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void rope(Stream& s, Tensor qkv, Tensor table, const RowMap& map, const RopeHeads& h, bool inverse) {
  const int64_t seq = map.total ? map.total : map.seq;
  const int64_t rotary_dim = table.shape[1] * 2;
  LT_CHECK(qkv.rows() % map.seq == 0 && h.heads * h.head_dim <= qkv.cols() && table.shape[0] >= seq &&
               rotary_dim > 0 && h.first >= 0 && h.first + rotary_dim <= h.head_dim,
           "rope: expected {} heads of {} channels, {} of them rotated from channel {} on, and a table of {} "
           "positions; got qkv {} and table {}",
           h.heads, h.head_dim, rotary_dim, h.first, seq, to_string(qkv.shape), to_string(table.shape));
  const char* name = inverse ? "rope_backward" : "rope_forward";
  if (s.meta()) {
    const double n = static_cast<double>(qkv.rows()) * h.heads * rotary_dim;
    OpCost cost = op_cost(name, OpClass::elementwise, 3 * n, {}, {});
    cost.bytes = 2 * n * dtype_size(qkv.dtype);
    cost.dtype = qkv.dtype;
    s.meta()->add(s, cost);
    place(s, "rope", Rule::elementwise, {qkv}, {qkv, table});
    return;
  }
  const OpRange range(s, name);
  LT_LAUNCH(s, rope, qkv.dtype, qkv.data, table.ptr<float>(), qkv.rows(), qkv.cols(), map.args(), h,
            rotary_dim, inverse);
}

}  // namespace ltrain
