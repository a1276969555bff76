#include "kernels/attention/rope.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void rope(Stream& s, Tensor qkv, Tensor table, const RowMap& map, int64_t heads, int64_t head_dim,
          bool inverse) {
  const int64_t seq = map.total ? map.total : map.seq;
  const int64_t rotary_dim = table.shape[1] * 2;
  LT_CHECK(qkv.rows() % map.seq == 0 && heads * head_dim <= qkv.cols() && table.shape[0] >= seq &&
               rotary_dim > 0 && rotary_dim <= head_dim,
           "rope of {} heads of {} in {}, a table of {}, {} positions", heads, head_dim, to_string(qkv.shape),
           to_string(table.shape), seq);
  const char* name = inverse ? "rope_backward" : "rope_forward";
  if (s.meta()) {
    const double n = static_cast<double>(qkv.rows()) * heads * rotary_dim;
    OpCost cost = op_cost(name, OpClass::elementwise, 3 * n, {}, {});
    cost.bytes = 2 * n * dtype_size(qkv.dtype);
    cost.dtype = qkv.dtype;
    s.meta()->add(s, cost);
    place(s, "rope", Rule::elementwise, {qkv}, {qkv, table});
    return;
  }
  const OpRange range(s, name);
  LT_LAUNCH(s, rope, qkv.dtype, qkv.data, table.ptr<float>(), qkv.rows(), qkv.cols(), map.args(), heads,
            head_dim, rotary_dim, inverse);
}

}  // namespace ltrain
