#include "kernels/moe/token_rows.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

TokenRows pointers(const Routing& r, int64_t cols, bool weighted) {
  return {r.slots.ptr<int32_t>(), r.sources.ptr<int32_t>(), weighted ? r.weights.data : nullptr,
          r.slots.shape[0],       r.slots.shape[1],         cols};
}

}  // namespace

void permute_rows(Stream& s, Tensor out, Tensor x, const Routing& r, int64_t rows) {
  LT_CHECK(
      out.shape[0] >= rows && out.cols() == x.cols() && x.shape[0] == r.slots.shape[0] &&
          out.dtype == x.dtype,
      "permute_rows: expected x ({}, C) and out (at least {}, C) of one dtype, got x {} {} and out {} {}",
      r.slots.shape[0], rows, dtype_name(x.dtype), to_string(x.shape), dtype_name(out.dtype),
      to_string(out.shape));
  if (s.meta()) {
    const Tensor to = out.narrow(0, rows);
    s.meta()->add(s, op_cost("permute_rows", OpClass::elementwise, 0, {to}, {to}));
    place(s, "permute_rows", Rule::elementwise, {out}, {x, r.sources});
    return;
  }
  LT_LAUNCH(s, permute_rows, x.dtype, out.data, x.data, pointers(r, x.cols(), false), rows);
}

void combine_rows(Stream& s, Tensor y, Tensor z, const Routing& r, bool weighted) {
  LT_CHECK(y.cols() == z.cols() && y.shape[0] == r.slots.shape[0] && y.dtype == z.dtype,
           "combine_rows: expected y ({}, {}) {}, got {} {}", r.slots.shape[0], z.cols(), dtype_name(z.dtype),
           to_string(y.shape), dtype_name(y.dtype));
  if (s.meta()) {
    s.meta()->add(s, op_cost("combine_rows", OpClass::elementwise, 2.0 * z.elements(), {y}, {z}));
    place(s, "combine_rows", Rule::linear, {y}, {z});
    place(s, "combine_rows", Rule::elementwise, {}, {r.slots});
    if (weighted) place(s, "combine_rows", Rule::elementwise, {}, {r.weights});
    return;
  }
  LT_LAUNCH(s, combine_rows, y.dtype, y.data, z.data, pointers(r, y.cols(), weighted));
}

void combine_rows_backward(Stream& s, Tensor dz, Tensor dweights, Tensor dy, Tensor z, const Routing& r) {
  LT_CHECK(dz.shape == z.shape && dy.cols() == z.cols() && dy.shape[0] == r.slots.shape[0] &&
               dweights.shape == r.weights.shape,
           "combine_rows backward: expected dz {}, dy ({}, {}) and dweights {}, got {}, {} and {}",
           to_string(z.shape), r.slots.shape[0], z.cols(), to_string(r.weights.shape), to_string(dz.shape),
           to_string(dy.shape), to_string(dweights.shape));
  if (s.meta()) {
    s.meta()->add(s,
                  op_cost("combine_rows_backward", OpClass::elementwise, 3.0 * z.elements(), {dz}, {z, dy}));
    // dweights is linear in z, which may be a summand of a rank.
    place(s, "combine_rows_backward", Rule::linear, {dweights}, {z});
    place(s, "combine_rows_backward", Rule::elementwise, {dz}, {dy, r.weights});
    return;
  }
  LT_LAUNCH(s, combine_rows_backward, dy.dtype, dz.data, dweights.data, dy.data, z.data,
            pointers(r, dy.cols(), true));
}

}  // namespace ltrain
