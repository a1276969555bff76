#include "kernels/matmul/swiglu_fp8.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

namespace {

void check_transposed(const char* op, const RoundedOutput& out) {
  const Tensor &transposed = out.transposed, &codes = out.codes;
  LT_CHECK(transposed.dtype == codes.dtype && transposed.shape == Shape({codes.cols(), codes.rows()}),
           "{}: expected transposed codes {} ({}, {}), got {} {}", op, dtype_name(codes.dtype), codes.cols(),
           codes.rows(), dtype_name(transposed.dtype), to_string(transposed.shape));
}

}  // namespace

void swiglu_forward_fp8(Stream& s, const RoundedOutput& out, Tensor gate_up) {
  const Tensor& y = out.codes;
  const bool turns = out.transposed.defined();
  check_rounded(out, {gate_up.rows(), gate_up.cols() / 2});
  if (turns) check_transposed("swiglu_forward_fp8", out);
  if (s.meta()) {
    OpCost cost = op_cost("swiglu_forward_fp8", OpClass::elementwise, 6.0 * y.elements(), {y}, {gate_up});
    if (turns) cost.bytes += static_cast<double>(out.transposed.bytes());
    cost.dtype = gate_up.dtype;
    s.meta()->add(s, cost);
    place(s, "swiglu_forward_fp8", Rule::elementwise, {y}, {gate_up});
    place_rounded(s, "swiglu_forward_fp8", out);
    return;
  }
  LT_LAUNCH(s, swiglu_forward_fp8, gate_up.dtype, y.data, turns ? out.transposed.data : nullptr,
            out.step.ptr<float>(), out.amax.defined() ? out.amax.ptr<float>() : nullptr, gate_up.data,
            y.rows(), y.cols());
}

void swiglu_backward_fp8(Stream& s, const RoundedOutput& out, Tensor dy, Tensor gate_up) {
  const Tensor &codes = out.codes, &transposed = out.transposed;
  LT_CHECK(is_fp8(codes.dtype) && codes.shape == gate_up.shape && gate_up.cols() == 2 * dy.cols() &&
               gate_up.rows() == dy.rows() && gate_up.dtype == dy.dtype,
           "swiglu_backward_fp8: expected FP8 codes and gate_up (T, 2F) and dy (T, F), got {} {}, {} and {}",
           dtype_name(codes.dtype), to_string(codes.shape), to_string(gate_up.shape), to_string(dy.shape));
  check_transposed("swiglu_backward_fp8", out);
  if (s.meta()) {
    OpCost cost = op_cost("swiglu_backward_fp8", OpClass::elementwise, 14.0 * dy.elements(),
                          {codes, transposed}, {dy, gate_up});
    cost.dtype = gate_up.dtype;
    s.meta()->add(s, cost);
    place(s, "swiglu_backward_fp8", Rule::elementwise, {codes}, {dy, gate_up});
    place_rounded(s, "swiglu_backward_fp8", out);
    return;
  }
  LT_LAUNCH(s, swiglu_backward_fp8, codes.dtype, dy.dtype, codes.data, transposed.data, out.step.ptr<float>(),
            out.amax.defined() ? out.amax.ptr<float>() : nullptr, dy.data, gate_up.data, dy.rows(),
            dy.cols());
}

}  // namespace ltrain
