#include "kernels/elementwise/activation.h"

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }
double gelu_erf(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double gelu_erf_slope(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
}
double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

constexpr std::pair<int64_t, int64_t> kMatrixShapes[] = {{1, 1}, {1, 37}, {7, 8}, {130, 19}, {64, 64}};

/// Result of a gated activation, and its slopes with respect to gate and input.
struct Gated {
  double value, of_gate, of_up;
};
using Gate = Gated (*)(double gate, double up);

Gated swiglu(double g, double u) { return {silu(g) * u, silu_slope(g) * u, silu(g)}; }
Gated geglu(double g, double u) { return {gelu(g) * u, gelu_slope(g) * u, gelu(g)}; }
Gated geglu_erf(double g, double u) { return {gelu_erf(g) * u, gelu_erf_slope(g) * u, gelu_erf(g)}; }
/// The formula of transformers' GptOssExperts.
Gated clamped_swiglu(double gate, double up) {
  const double g = std::min(gate, 7.0), u = std::clamp(up, -7.0, 7.0), share = sigmoid(1.702 * g);
  return {(u + 1) * g * share, gate > 7 ? 0 : (u + 1) * (share + g * 1.702 * share * (1 - share)),
          std::abs(up) > 7 ? 0 : g * share};
}

/// Kernels with `form` as their last argument.
template <class F>
auto in_form(GeluForm form, const std::vector<std::pair<const char*, F*>>& kernels) {
  const auto bound = [form](F* f) { return [=](auto... args) { f(args..., form); }; };
  std::vector<std::pair<const char*, decltype(bound(nullptr))>> out;
  for (const auto& [isa, kernel] : kernels) out.emplace_back(isa, bound(kernel));
  return out;
}

template <class Kernels, class BackwardKernels>
void check_gated(Gate gate, const Kernels& forwards, const BackwardKernels& backwards, double size = 4) {
  for (const auto& [rows, cols] : kMatrixShapes)
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

TEST_CASE("geglu equals its double reference in both forms, forward and backward") {
  for (const auto& [form, gate] :
       {std::pair<GeluForm, Gate>{GeluForm::tanh, geglu}, {GeluForm::erf, geglu_erf}}) {
    CAPTURE(form == GeluForm::erf);
    check_gated(gate, in_form(form, BOTH_ISAS(geglu_forward_cpu)),
                in_form(form, BOTH_ISAS(geglu_backward_cpu)));
  }
}

TEST_CASE("the two forms of gelu differ, and each form is its own reference") {  // control of the tests here
  CHECK(std::abs(gelu(2.0) - gelu_erf(2.0)) > 5e-5);
  CHECK(gelu_erf(-1.0) == Approx(-0.15865525393145705));  // minus the tail beyond one deviation
  CHECK(gelu_erf_slope(1.0) == Approx(0.8413447460685429 + 0.24197072451914337));
}

TEST_CASE("the tail of the normal distribution is erfc's within 3e-7, and to 3e-6 of itself") {
  for (const auto& [isa, forward] : BOTH_ISAS(gelu_forward_cpu)) {
    INFO(isa);
    constexpr int64_t n = 100000;
    Guarded<float> x(n), y(n);
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(i - n / 2) * (12.0f / (n / 2));
    forward(DType::f32, y.data(), x.data(), n, GeluForm::erf);
    double worst = 0, relative = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (x[i] == 0) continue;
      const double share = 0.5 * std::erfc(-static_cast<double>(x[i]) / std::sqrt(2.0)), got = y[i] / x[i];
      worst = std::max(worst, std::abs(got - share));
      if (x[i] > -6) relative = std::max(relative, std::abs(got / share - 1));
    }
    CHECK(worst < 3e-7);
    CHECK(relative < 3e-6);  // exp's argument, of up to 18, is rounded
  }
}

TEST_CASE("clamped swiglu equals its double reference, forward and backward, within its limits and beyond") {
  check_gated(clamped_swiglu, BOTH_ISAS(clamped_swiglu_forward_cpu), BOTH_ISAS(clamped_swiglu_backward_cpu),
              10);
}

TEST_CASE("gelu equals its double reference in both forms, forward and backward") {
  for (const auto& test : {std::pair<int64_t, GeluForm>{1, GeluForm::tanh},
                           {15, GeluForm::tanh},
                           {4097, GeluForm::tanh},
                           {9001, GeluForm::tanh},
                           {1, GeluForm::erf},
                           {15, GeluForm::erf},
                           {9001, GeluForm::erf}})
    each_float([&]<class T>() {
      const int64_t n = test.first;
      const GeluForm form = test.second;
      const auto of = form == GeluForm::erf ? gelu_erf : gelu;
      const auto slope = form == GeluForm::erf ? gelu_erf_slope : gelu_slope;
      const auto x = random_array<T>(n, 3, 5), dy = random_array<T>(n, 4);
      std::vector<double> want(n), want_grad(n);
      for (int64_t i = 0; i < n; ++i) {
        want[i] = of(as_double(x[i]));
        want_grad[i] = as_double(dy[i]) * slope(as_double(x[i]));
      }
      for (const auto& [isa, forward] : BOTH_ISAS(gelu_forward_cpu)) {
        INFO(isa << " " << n);
        std::string bits;
        for (int threads : {1, 2})
          with_threads(threads, [&] {
            Guarded<T> y(n);
            forward(dtype_of<T>::value, y.data(), x.data(), n, form);
            CHECK(y.intact());
            CHECK(worst_error(y, want) < tolerance<T>());
            CHECK((threads == 1 || y.bits() == bits));
            bits = y.bits();
          });
      }
      for (const auto& [isa, backward] : BOTH_ISAS(gelu_backward_cpu)) {
        INFO(isa << " " << n);
        Guarded<T> apart(n), over_dy = dy, over_x = x;
        backward(dtype_of<T>::value, apart.data(), dy.data(), x.data(), n, form);
        with_threads(
            2, [&] { backward(dtype_of<T>::value, over_dy.data(), over_dy.data(), x.data(), n, form); });
        backward(dtype_of<T>::value, over_x.data(), dy.data(), over_x.data(), n, form);
        CHECK(apart.intact());
        CHECK(worst_error(apart, want_grad) < tolerance<T>());
        CHECK(apart.bits() == over_dy.bits());
        CHECK(apart.bits() == over_x.bits());
      }
    });
}

TEST_CASE("gelu's gradient with the sums of its columns has the bits of both apart") {
  for (const auto& [rows, cols] : kMatrixShapes)
    for (const GeluForm form : {GeluForm::tanh, GeluForm::erf})
      each_float([&, rows = rows, cols = cols]<class T>() {
        using A = compute_t<T>;
        const DType t = dtype_of<T>::value;
        const auto x = random_array<T>(rows * cols, 3, 5), dy = random_array<T>(rows * cols, 4);
        const auto before = random_array<A>(cols, 5);
        const auto together = BOTH_ISAS(gelu_backward_sums_cpu);
        const auto alone = BOTH_ISAS(gelu_backward_cpu);
        for (size_t i = 0; i < together.size(); ++i)
          for (const bool accumulate : {false, true}) {
            INFO(together[i].first << " " << rows << " x " << cols << (accumulate ? ", added" : ""));
            Guarded<T> dx(rows * cols), in_place = x;
            Guarded<A> sums = before, wanted = before;
            together[i].second(t, in_place.data(), sums.data(), dy.data(), in_place.data(), rows, cols, form,
                               accumulate);
            alone[i].second(t, dx.data(), dy.data(), x.data(), rows * cols, form);
            for (int64_t c = 0; c < cols; ++c) {
              if (!accumulate) wanted[c] = 0;
              for (int64_t row = 0; row < rows; ++row) wanted[c] += get(dx.data(), row * cols + c);
            }
            CHECK(in_place.bits() == dx.bits());
            CHECK(sums.bits() == wanted.bits());
            CHECK((sums.intact() && in_place.intact()));
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
    for (const auto& [isa, forward] : BOTH_ISAS(swiglu_forward_cpu))
      forward(dtype_of<T>::value, out.data(), gate_up.data(), 1, 8);
    for (const GeluForm form : {GeluForm::tanh, GeluForm::erf}) {
      for (const auto& [isa, forward] : BOTH_ISAS(gelu_forward_cpu))
        forward(dtype_of<T>::value, y.data(), x.data(), 8, form);
      for (const auto& [isa, back] : BOTH_ISAS(gelu_backward_cpu))
        back(dtype_of<T>::value, dx.data(), dy.data(), x.data(), 8, form);
      for (int i = 0; i < 8; ++i) {
        const double v = as_double(x[i]), expect = v < 0 ? 0 : v;
        CHECK(std::abs(as_double(y[i]) - expect) < 1e-3);
        CHECK(std::abs(as_double(dx[i]) - (v < 0 ? 0 : 1)) < 1e-3);
        CHECK(std::abs(as_double(out[i]) - expect) < 1e-3);
      }
    }
  });
}
