// compressed all-reduce, and updates of 1-bit Adam and LAMB.
#include "kernels/optimizer/onebit/error_feedback.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/optimizer/onebit/onebit.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

template <class T>
struct Flat {
  std::vector<T> values;
  explicit Flat(int64_t n) : values(static_cast<size_t>(n)) {}
  Tensor tensor() {
    Tensor t;
    t.data = values.data();
    t.dtype = dtype_of<T>::value;
    t.shape = {static_cast<int64_t>(values.size())};
    return t;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("codes and what they leave over are what was put in, and errors add up over calls", "",
                   float, double) {
  const auto s = make_inline_stream("test");
  const double tiny = std::is_same_v<TestType, double> ? 1e-14 : 1e-5;
  for (const Code code : {Code::sign, Code::int8}) {
    const int64_t n = 3 * code_block(code);
    Flat<TestType> x(n), error(n), out(n), where(n);
    Flat<uint8_t> coded(coded_bytes(code, dtype_of<TestType>::value, n));
    std::vector<double> sent(n), given(n);
    for (int64_t i = 0; i < n; ++i) where.values[i] = i % 7 == 3 ? 0 : 1;
    for (int step = 1; step <= 5; ++step) {
      for (int64_t i = 0; i < n; ++i) x.values[i] = static_cast<TestType>(random_value(step, i, 1 + i % 5));
      const std::vector<TestType> before = error.values;
      compress(*s, code, coded.tensor(), x.tensor(), error.tensor(), where.tensor());
      decompress(*s, code, out.tensor(), coded.tensor(), where.tensor());
      double worst = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (i % 7 == 3) {
          worst = std::max(worst, static_cast<double>(std::abs(error.values[i]) + std::abs(out.values[i])));
          continue;
        }
        worst = std::max(worst, std::abs(static_cast<double>(x.values[i] + before[i]) -
                                         (static_cast<double>(out.values[i]) + error.values[i])));
        sent[i] += out.values[i];
        given[i] += x.values[i];
        worst = std::max(worst, std::abs(given[i] - sent[i] - error.values[i]));
      }
      CHECK(worst < 20 * tiny);
      // The rounding error is at most half a step of 127, or as large as the input.
      if (code == Code::int8)
        for (int64_t b = 0; b < n; b += code_block(code))
          for (int64_t i = b; i < b + code_block(code); ++i) CHECK(std::abs(error.values[i]) <= 5.1 / 127);
    }
    // Negative control: when errors are forgotten, what was sent and the last error are not what was given.
    double apart = 0;
    std::fill(sent.begin(), sent.end(), 0.0), std::fill(given.begin(), given.end(), 0.0);
    for (int step = 1; step <= 2; ++step) {
      std::fill(error.values.begin(), error.values.end(), TestType(0));
      for (int64_t i = 0; i < n; ++i) x.values[i] = static_cast<TestType>(random_value(step, i, 1));
      compress(*s, code, coded.tensor(), x.tensor(), error.tensor(), where.tensor());
      decompress(*s, code, out.tensor(), coded.tensor(), where.tensor());
      for (int64_t i = 0; i < n; ++i)
        if (i % 7 != 3) {
          sent[i] += out.values[i], given[i] += x.values[i];
          if (step == 2) apart = std::max(apart, std::abs(given[i] - sent[i] - error.values[i]));
        }
    }
    CHECK(apart > 1e-3);
  }
}

TEST_CASE("one magnitude and one sign on all ranks: the sum is exact, and nothing is left over") {
  const auto s = make_inline_stream("test");
  const int64_t n = code_block(Code::sign), part = coded_bytes(Code::sign, DType::f32, n);
  Flat<float> x(n), error(n), sum_error(n), out(n);
  for (int64_t i = 0; i < n; ++i) x.values[i] = i % 3 ? 0.25f : -0.25f;
  Flat<uint8_t> coded(3 * part), sum(part);
  for (int r = 0; r < 3; ++r)
    compress(*s, Code::sign, coded.tensor().flat(r * part, {part}), x.tensor(), error.tensor(), {});
  compress_sum(*s, Code::sign, sum.tensor(), coded.tensor(), 3, 1.0 / 3, sum_error.tensor(), {});
  decompress(*s, Code::sign, out.tensor(), sum.tensor(), {});
  for (int64_t i = 0; i < n; ++i) {
    REQUIRE(std::abs(out.values[i] - x.values[i]) < 1e-7);
    REQUIRE(error.values[i] == 0);
    REQUIRE(std::abs(sum_error.values[i]) < 1e-7);
  }
}

TEST_CASE("a number that is not finite makes its block NaN, and no other") {
  const auto s = make_inline_stream("test");
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")})
    for (const Code code : {Code::sign, Code::int8}) {
      const int64_t n = 2 * code_block(code);
      Flat<float> x(n), error(n), out(n);
      for (int64_t i = 0; i < n; ++i) x.values[i] = static_cast<float>(i % 5) - 2;
      x.values[static_cast<size_t>(code_block(code) + 9)] = bad;
      Flat<uint8_t> coded(coded_bytes(code, DType::f32, n));
      compress(*s, code, coded.tensor(), x.tensor(), error.tensor(), {});
      decompress(*s, code, out.tensor(), coded.tensor(), {});
      CHECK(std::isfinite(out.values[0]));
      CHECK_FALSE(std::isfinite(out.values[static_cast<size_t>(code_block(code))]));
    }
}

TEST_CASE("1-bit LAMB's coefficients: an average of trust ratios, then factors within their limits") {
  const auto s = make_inline_stream("test");
  LambLimits limits;
  Flat<double> state(4), sums(4);
  sums.values = {4.0, 1.0, 900.0, 1.0};  // trust 2, and 30, which is above max_coeff
  onebit_coefficients(*s, state.tensor(), sums.tensor(), false, limits);
  CHECK(sums.values[0] == Approx(2));
  CHECK(sums.values[2] == Approx(10));
  CHECK(state.values[0] == Approx(0.2));
  CHECK(state.values[2] == Approx(1.0));
  sums.values = {3.0, 0.0, 0.2, 0.0};  // both further than a tenth from 1
  onebit_coefficients(*s, state.tensor(), sums.tensor(), true, limits);
  CHECK(state.values[1] == Approx(1.1));
  CHECK(sums.values[0] == Approx(0.2 * 1.1));
  CHECK(state.values[3] == Approx(0.9));
  for (int i = 0; i < 20; ++i) {
    sums.values = {100.0, 0.0, 0.0, 0.0};
    onebit_coefficients(*s, state.tensor(), sums.tensor(), true, limits);
  }
  CHECK(state.values[1] == Approx(4));
  CHECK(state.values[3] == Approx(0.5));
}
