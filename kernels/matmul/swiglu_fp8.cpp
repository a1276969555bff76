#include "kernels/matmul/swiglu_fp8.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void swiglu_forward_fp8(Stream& s, const RoundedOutput& out, Tensor gate_up) {
  const Tensor& y = out.codes;
  check_rounded(out, {gate_up.rows(), gate_up.cols() / 2});
  if (s.meta()) {
    OpCost cost = op_cost("swiglu_forward_fp8", OpClass::elementwise, 6.0 * y.elements(), {y}, {gate_up});
    cost.dtype = gate_up.dtype;
    s.meta()->add(s, cost);
    place(s, "swiglu_forward_fp8", Rule::elementwise, {y}, {gate_up});
    place_rounded(s, "swiglu_forward_fp8", out);
    return;
  }
  LT_LAUNCH(s, swiglu_forward_fp8, gate_up.dtype, y.data, out.step.ptr<float>(),
            out.amax.defined() ? out.amax.ptr<float>() : nullptr, gate_up.data, y.rows(), y.cols());
}

}  // namespace ltrain
