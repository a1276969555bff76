#include "kernels/elementwise/activation.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void swiglu_forward(Stream& s, Tensor y, Tensor gate_up) {
  LT_CHECK(gate_up.cols() == 2 * y.cols() && gate_up.rows() == y.rows(),
           "swiglu: expected gate_up (T, 2F) and y (T, F), got {} and {}", to_string(gate_up.shape),
           to_string(y.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("swiglu_forward", OpClass::elementwise, 5.0 * y.elements(), {y}, {gate_up}));
    place(s, "swiglu_forward", Rule::elementwise, {y}, {gate_up});
    return;
  }
  LT_LAUNCH(s, swiglu_forward, y.dtype, y.data, gate_up.data, y.rows(), y.cols());
}

void swiglu_backward(Stream& s, Tensor dgate_up, Tensor dy, Tensor gate_up) {
  LT_CHECK(dgate_up.shape == gate_up.shape && gate_up.cols() == 2 * dy.cols(),
           "swiglu backward: expected dgate_up and gate_up (T, 2F) and dy (T, F), got {}, {} and {}",
           to_string(dgate_up.shape), to_string(gate_up.shape), to_string(dy.shape));
  if (s.meta()) {
    s.meta()->add(
        s, op_cost("swiglu_backward", OpClass::elementwise, 12.0 * dy.elements(), {dgate_up}, {dy, gate_up}));
    place(s, "swiglu_backward", Rule::elementwise, {dgate_up}, {dy, gate_up});
    return;
  }
  LT_LAUNCH(s, swiglu_backward, dy.dtype, dgate_up.data, dy.data, gate_up.data, dy.rows(), dy.cols());
}

void clamped_swiglu_forward(Stream& s, Tensor y, Tensor gate_up) {
  LT_CHECK(gate_up.cols() == 2 * y.cols() && gate_up.rows() == y.rows(),
           "clamped swiglu: expected gate_up (T, 2F) and y (T, F), got {} and {}", to_string(gate_up.shape),
           to_string(y.shape));
  if (s.meta()) {
    s.meta()->add(
        s, op_cost("clamped_swiglu_forward", OpClass::elementwise, 9.0 * y.elements(), {y}, {gate_up}));
    place(s, "clamped_swiglu_forward", Rule::elementwise, {y}, {gate_up});
    return;
  }
  LT_LAUNCH(s, clamped_swiglu_forward, y.dtype, y.data, gate_up.data, y.rows(), y.cols());
}

void clamped_swiglu_backward(Stream& s, Tensor dgate_up, Tensor dy, Tensor gate_up) {
  LT_CHECK(dgate_up.shape == gate_up.shape && gate_up.cols() == 2 * dy.cols(),
           "clamped swiglu backward: expected dgate_up and gate_up (T, 2F) and dy (T, F), got {}, {} and {}",
           to_string(dgate_up.shape), to_string(gate_up.shape), to_string(dy.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("clamped_swiglu_backward", OpClass::elementwise, 18.0 * dy.elements(),
                             {dgate_up}, {dy, gate_up}));
    place(s, "clamped_swiglu_backward", Rule::elementwise, {dgate_up}, {dy, gate_up});
    return;
  }
  LT_LAUNCH(s, clamped_swiglu_backward, dy.dtype, dgate_up.data, dy.data, gate_up.data, dy.rows(), dy.cols());
}

void geglu_forward(Stream& s, Tensor y, Tensor gate_up, GeluForm form) {
  LT_CHECK(gate_up.cols() == 2 * y.cols() && gate_up.rows() == y.rows(),
           "geglu: expected gate_up (T, 2F) and y (T, F), got {} and {}", to_string(gate_up.shape),
           to_string(y.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost(form == GeluForm::erf ? "geglu_erf_forward" : "geglu_forward",
                             OpClass::elementwise, 11.0 * y.elements(), {y}, {gate_up}));
    place(s, "geglu_forward", Rule::elementwise, {y}, {gate_up});
    return;
  }
  LT_LAUNCH(s, geglu_forward, y.dtype, y.data, gate_up.data, y.rows(), y.cols(), form);
}

void geglu_backward(Stream& s, Tensor dgate_up, Tensor dy, Tensor gate_up, GeluForm form) {
  LT_CHECK(dgate_up.shape == gate_up.shape && gate_up.cols() == 2 * dy.cols(),
           "geglu backward: expected dgate_up and gate_up (T, 2F) and dy (T, F), got {}, {} and {}",
           to_string(dgate_up.shape), to_string(gate_up.shape), to_string(dy.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost(form == GeluForm::erf ? "geglu_erf_backward" : "geglu_backward",
                             OpClass::elementwise, 20.0 * dy.elements(), {dgate_up}, {dy, gate_up}));
    place(s, "geglu_backward", Rule::elementwise, {dgate_up}, {dy, gate_up});
    return;
  }
  LT_LAUNCH(s, geglu_backward, dy.dtype, dgate_up.data, dy.data, gate_up.data, dy.rows(), dy.cols(), form);
}

void gelu_forward(Stream& s, Tensor y, Tensor x, GeluForm form) {
  LT_CHECK(x.shape == y.shape, "gelu: expected y of shape {}, got {}", to_string(x.shape),
           to_string(y.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost(form == GeluForm::erf ? "gelu_erf_forward" : "gelu_forward",
                             OpClass::elementwise, 10.0 * x.elements(), {y}, {x}));
    place(s, "gelu_forward", Rule::elementwise, {y}, {x});
    return;
  }
  LT_LAUNCH(s, gelu_forward, x.dtype, y.data, x.data, x.elements(), form);
}

void gelu_backward(Stream& s, Tensor dx, Tensor dy, Tensor x, GeluForm form) {
  LT_CHECK(x.shape == dy.shape && dx.shape == x.shape,
           "gelu backward: expected dy and dx of shape {}, got {} and {}", to_string(x.shape),
           to_string(dy.shape), to_string(dx.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost(form == GeluForm::erf ? "gelu_erf_backward" : "gelu_backward",
                             OpClass::elementwise, 16.0 * x.elements(), {dx}, {dy, x}));
    place(s, "gelu_backward", Rule::elementwise, {dx}, {dy, x});
    return;
  }
  LT_LAUNCH(s, gelu_backward, x.dtype, dx.data, dy.data, x.data, x.elements(), form);
}

void gelu_backward_sums(Stream& s, Tensor dx, Tensor sums, Tensor dy, Tensor x, GeluForm form,
                        bool accumulate) {
  LT_CHECK(x.shape == dy.shape && dx.shape == x.shape && sums.elements() == x.cols(),
           "gelu backward: expected dy and dx of shape {} and sums of {} elements, got {}, {} and {}",
           to_string(x.shape), x.cols(), to_string(dy.shape), to_string(dx.shape), to_string(sums.shape));
  if (s.meta()) {
    const char* const name = form == GeluForm::erf ? "gelu_erf_backward_sums" : "gelu_backward_sums";
    s.meta()->add(s, op_cost(name, OpClass::elementwise, 17.0 * x.elements(), {dx}, {dy, x}));
    place(s, "gelu_backward_sums", Rule::elementwise, {dx}, {dy, x});
    place(s, "gelu_backward_sums", Rule::sum_rows, {sums}, {dy, x}, accumulate);
    return;
  }
  LT_LAUNCH(s, gelu_backward_sums, x.dtype, dx.data, sums.data, dy.data, x.data, x.rows(), x.cols(), form,
            accumulate);
}

}  // namespace ltrain
