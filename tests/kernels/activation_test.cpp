#include "kernels/elementwise/activation.h"

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }
double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1}, {1, 37}, {7, 8}, {130, 19}, {64, 64}};

/// Result of a gated activation, and its slopes with respect to gate and input.
struct Gated {
  double value, of_gate, of_up;
};
using Gate = Gated (*)(double gate, double up);

Gated swiglu(double g, double u) { return {silu(g) * u, silu_slope(g) * u, silu(g)}; }
Gated geglu(double g, double u) { return {gelu(g) * u, gelu_slope(g) * u, gelu(g)}; }
/// The formula of transformers' GptOssExperts.
Gated clamped_swiglu(double gate, double up) {
  const double g = std::min(gate, 7.0), u = std::clamp(up, -7.0, 7.0), share = sigmoid(1.702 * g);
  return {(u + 1) * g * share, gate > 7 ? 0 : (u + 1) * (share + g * 1.702 * share * (1 - share)),
          std::abs(up) > 7 ? 0 : g * share};
}

template <class Kernels, class BackwardKernels>
void check_gated(Gate gate, const Kernels& forwards, const BackwardKernels& backwards, double size = 4) {
  for (const auto& [rows, cols] : kShapes)
    each_float([&, rows = rows, cols = cols]<class T>() {
      const auto gate_up = random_array<T>(rows * 2 * cols, 1, size);
      const auto dy = random_array<T>(rows * cols, 2);
      std::vector<double> want(rows * cols), want_grad(rows * 2 * cols);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) {
          const double g = as_double(gate_up[r * 2 * cols + c]),
                       u = as_double(gate_up[r * 2 * cols + cols + c]);
          const double d = as_double(dy[r * cols + c]);
          const Gated w = gate(g, u);
          want[r * cols + c] = w.value;
          want_grad[r * 2 * cols + c] = d * w.of_gate;
          want_grad[r * 2 * cols + cols + c] = d * w.of_up;
        }
      for (const auto& [isa, forward] : forwards) {
        INFO(isa << " " << rows << "x" << cols);
        std::string bits;
        for (int threads : {1, 2})
          with_threads(threads, [&] {
            Guarded<T> y(rows * cols);
            forward(dtype_of<T>::value, y.data(), gate_up.data(), rows, cols);
            CHECK(y.intact());
            CHECK(worst_error(y, want) < tolerance<T>());
            CHECK((threads == 1 || y.bits() == bits));
            bits = y.bits();
          });
      }
      for (const auto& [isa, backward] : backwards) {
        INFO(isa << " " << rows << "x" << cols);
        Guarded<T> apart(rows * 2 * cols), in_place = gate_up;
        with_threads(
            1, [&] { backward(dtype_of<T>::value, apart.data(), dy.data(), gate_up.data(), rows, cols); });
        with_threads(2, [&] {
          backward(dtype_of<T>::value, in_place.data(), dy.data(), in_place.data(), rows, cols);
        });
        CHECK(apart.intact());
        CHECK(worst_error(apart, want_grad) < tolerance<T>());
        CHECK(apart.bits() == in_place.bits());  // dgate_up may alias gate_up
      }
    });
}

}  // namespace

TEST_CASE("swiglu equals its double reference, forward and backward") {
  check_gated(swiglu, BOTH_ISAS(swiglu_forward_cpu), BOTH_ISAS(swiglu_backward_cpu));
}

TEST_CASE("geglu equals its double reference, forward and backward") {
  check_gated(geglu, BOTH_ISAS(geglu_forward_cpu), BOTH_ISAS(geglu_backward_cpu));
}

TEST_CASE("clamped swiglu equals its double reference, forward and backward, within its limits and beyond") {
  check_gated(clamped_swiglu, BOTH_ISAS(clamped_swiglu_forward_cpu), BOTH_ISAS(clamped_swiglu_backward_cpu),
              10);
}

TEST_CASE("gelu equals its double reference, forward and backward") {
  for (int64_t n : {1, 15, 4097, 9001})
    each_float([&]<class T>() {
      const auto x = random_array<T>(n, 3, 5), dy = random_array<T>(n, 4);
      std::vector<double> want(n), want_grad(n);
      for (int64_t i = 0; i < n; ++i) {
        want[i] = gelu(as_double(x[i]));
        want_grad[i] = as_double(dy[i]) * gelu_slope(as_double(x[i]));
      }
      for (const auto& [isa, forward] : BOTH_ISAS(gelu_forward_cpu)) {
        INFO(isa << " " << n);
        std::string bits;
        for (int threads : {1, 2})
          with_threads(threads, [&] {
            Guarded<T> y(n);
            forward(dtype_of<T>::value, y.data(), x.data(), n);
            CHECK(y.intact());
            CHECK(worst_error(y, want) < tolerance<T>());
            CHECK((threads == 1 || y.bits() == bits));
            bits = y.bits();
          });
      }
      for (const auto& [isa, backward] : BOTH_ISAS(gelu_backward_cpu)) {
        INFO(isa << " " << n);
        Guarded<T> apart(n), over_dy = dy, over_x = x;
        backward(dtype_of<T>::value, apart.data(), dy.data(), x.data(), n);
        with_threads(2, [&] { backward(dtype_of<T>::value, over_dy.data(), over_dy.data(), x.data(), n); });
        backward(dtype_of<T>::value, over_x.data(), dy.data(), over_x.data(), n);
        CHECK(apart.intact());
        CHECK(worst_error(apart, want_grad) < tolerance<T>());
        CHECK(apart.bits() == over_dy.bits());
        CHECK(apart.bits() == over_x.bits());
      }
    });
}

TEST_CASE("activations saturate without NaN") {
  each_float([&]<class T>() {
    Guarded<T> x(8), y(8), dx(8), dy(8), gate_up(16), out(8);
    const double values[] = {-1e4, -100, -88, -20, 20, 88, 100, 1e4};
    for (int i = 0; i < 8; ++i) {
      x[i] = T(static_cast<compute_t<T>>(values[i]));
      dy[i] = T(1.0f);
      gate_up[i] = x[i];
      gate_up[8 + i] = T(1.0f);
    }
    for (const auto& [isa, forward] : BOTH_ISAS(gelu_forward_cpu))
      forward(dtype_of<T>::value, y.data(), x.data(), 8);
    for (const auto& [isa, back] : BOTH_ISAS(gelu_backward_cpu))
      back(dtype_of<T>::value, dx.data(), dy.data(), x.data(), 8);
    for (const auto& [isa, forward] : BOTH_ISAS(swiglu_forward_cpu))
      forward(dtype_of<T>::value, out.data(), gate_up.data(), 1, 8);
    for (int i = 0; i < 8; ++i) {
      const double v = as_double(x[i]), expect = v < 0 ? 0 : v;
      CHECK(std::abs(as_double(y[i]) - expect) < 1e-3);
      CHECK(std::abs(as_double(dx[i]) - (v < 0 ? 0 : 1)) < 1e-3);
      CHECK(std::abs(as_double(out[i]) - expect) < 1e-3);
    }
  });
}
