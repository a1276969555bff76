#include "kernels/norm/norm_fp8.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void norm_forward_fp8(Stream& s, const NormForward& a, const RoundedOutput& out) {
  check_rounded(out, a.x.shape);
  LT_CHECK(a.weight.elements() == a.x.cols() && a.rstd.elements() == a.x.rows() &&
               a.delta.defined() == a.sum.defined() && !a.y.defined(),
           "FP8 norm: expected weight of {} elements, {} values of rstd, delta and sum together or neither, "
           "and no y; got weight {}, rstd {}",
           a.x.cols(), a.x.rows(), to_string(a.weight.shape), to_string(a.rstd.shape));
  const char* name = a.dropout.on() ? "norm_forward_fp8_dropout" : "norm_forward_fp8";
  if (s.meta()) {
    OpCost cost = op_cost(name, OpClass::elementwise, 7.0 * a.x.elements(), {out.codes}, {a.x});
    cost.dtype = a.x.dtype;
    if (a.delta.defined()) cost.bytes += 2.0 * a.delta.bytes();
    s.meta()->add(s, cost);
    place_norm(s, name, a, out.codes);
    place_rounded(s, name, out);
    return;
  }
  const OpRange range(s, name);
  LT_LAUNCH(
      s, norm_forward_fp8, a.x.dtype, {a.kind, a.x.rows(), a.x.cols(), a.eps, false, false, a.weight_offset},
      out.codes.data, out.step.ptr<float>(), out.amax.defined() ? out.amax.ptr<float>() : nullptr, a.sum.data,
      a.mean.data, a.rstd.data, a.x.data, a.delta.data, a.weight.data, a.bias.data, dropout_args(a.dropout));
}

}  // namespace ltrain
