// The formats of FP8 against their definition, rounding of matrices, and products of them.
#include "kernels/tensor/fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/matmul/matmul_fp8.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// A format by its definition (arXiv:2209.05433, table 1): sign, exponent, mantissa.
struct Format {
  int exponent_bits, mantissa_bits, bias;
  bool infinities;
  double value(int code) const {
    const int sign = code >> 7, m = code & ((1 << mantissa_bits) - 1),
              e = code >> mantissa_bits & ((1 << exponent_bits) - 1), top = (1 << exponent_bits) - 1;
    const double unit = std::ldexp(1.0, -mantissa_bits);
    double v;
    if (infinities && e == top)
      v = m == 0 ? INFINITY : NAN;
    else if (!infinities && e == top && m == (1 << mantissa_bits) - 1)
      v = NAN;
    else
      v = e == 0 ? std::ldexp(m * unit, 1 - bias) : std::ldexp(1 + m * unit, e - bias);
    return sign ? -v : v;
  }
  /// The code of v: the nearest number, of two the one with an even code, at most the largest.
  int round(double v) const {
    if (std::isnan(v)) return -1;
    if (std::isinf(v)) return infinities ? (v < 0 ? 0xfc : 0x7c) : -1;
    int best = 0;
    double least = INFINITY;
    const double magnitude = std::min(std::abs(v), value(infinities ? 0x7b : 0x7e));
    for (int code = 0; code < 128; ++code) {
      const double x = value(code);
      if (!std::isfinite(x)) continue;
      const double apart = std::abs(x - magnitude);
      if (apart < least || (apart == least && code % 2 == 0)) least = apart, best = code;
    }
    return std::signbit(v) ? best | 0x80 : best;
  }
};
constexpr Format kE4m3{4, 3, 7, false}, kE5m2{5, 2, 15, true};

template <class E>
void check_format(const Format& f) {
  for (int code = 0; code < 256; ++code) {
    INFO(code);
    const double want = f.value(code);
    const float got = E::from(static_cast<uint8_t>(code));
    if (std::isnan(want)) {
      CHECK(std::isnan(got));
      CHECK(std::isnan(E::from(E::to(got))));
      continue;
    }
    CHECK(got == want);
    CHECK(std::signbit(got) == (code >= 128));
    CHECK(int{E::to(got)} == code);
  }
  // Every number of bf16, and the floats just beside every middle between two numbers.
  int wrong = 0;
  const auto check = [&](float v) {
    const int want = f.round(v), got = E::to(v);
    wrong += want < 0 ? !std::isnan(E::from(static_cast<uint8_t>(got))) : got != want;
  };
  for (uint32_t bits = 0; bits < 65536; ++bits) check(fp8::float_of(bits << 16));
  for (int code = 0; code < 127; ++code) {
    const double middle = (f.value(code) + f.value(code + 1)) / 2;
    if (!std::isfinite(middle)) continue;
    const float m = static_cast<float>(middle);
    for (float v : {m, std::nextafter(m, 0.0f), std::nextafter(m, INFINITY)}) check(v), check(-v);
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("e4m3: all codes and all numbers of bf16 against the definition") { check_format<E4m3>(kE4m3); }
TEST_CASE("e5m2: all codes and all numbers of bf16 against the definition") { check_format<E5m2>(kE5m2); }

TEST_CASE("the definition that formats are tested against can fail") {
  int apart = 0;
  for (int code = 0; code < 256; ++code)
    apart += !(E5m2::from(static_cast<uint8_t>(code)) == kE4m3.value(code));
  CHECK(apart > 200);
  CHECK(kE4m3.value(0x7e) == 448);
  CHECK(kE5m2.value(0x7b) == 57344);
}

TEST_CASE("steps: the smallest power of two that no element is too large for") {
  for (int top : {8, 15})
    for (float amax : {1e-30f, 0.001f, 0.4999f, 1.0f, 1.75f, std::nextafter(1.75f, 2.0f), 3.5f, 448.0f,
                       449.0f, 57344.0f, 1e30f}) {
      const float step = fp8::step_of(amax, top, 0), most = std::ldexp(1.75f, top);
      INFO(top << " " << amax << " " << step);
      CHECK(std::exp2(std::round(std::log2(step))) == step);
      CHECK(amax / step <= most);
      CHECK(amax / (step / 2) > most);
      CHECK(fp8::step_of(amax, top, 3) == 8 * step);
    }
  for (float nothing : {0.0f, INFINITY, NAN}) CHECK(fp8::step_of(nothing, 8, 2) == 1);
}

TEST_CASE(
    "quantize: rounded numbers and largest magnitudes, in place and transposed, on each instruction set") {
  each_float([&]<class T>() {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 70}, {130, 65}, {64, 128}})
      for (bool turn : {false, true})
        for (const auto& [isa, f] : BOTH_ISAS(quantize_cpu))
          for (int threads : {1, 2})
            with_threads(threads, [&, rows = rows, cols = cols, f = f] {
              INFO(isa << " " << rows << "x" << cols << turn);
              const auto x = random_array<T>(rows * cols, 5, 900);  // some saturate
              const float step = 1;
              float amax = 2;
              Guarded<uint8_t> codes(rows * cols);
              f(DType::f8e4m3, dtype_of<T>::value, codes.data(), x.data(), rows, cols, turn, &step, &amax);
              CHECK(codes.intact());
              double largest = 2;
              int wrong = 0;
              for (int64_t r = 0; r < rows; ++r)
                for (int64_t c = 0; c < cols; ++c) {
                  const double v = as_double(x[r * cols + c]);
                  largest = std::max(largest, std::abs(v));
                  wrong += codes[turn ? c * rows + r : r * cols + c] !=
                           kE4m3.round(static_cast<double>(static_cast<float>(v)));
                }
              CHECK(wrong == 0);
              CHECK(amax == static_cast<float>(largest));
            });
  });
}

TEST_CASE("a NaN is the largest magnitude, and stays one") {
  Guarded<bf16> x = random_array<bf16>(100, 1);
  x[40] = bf16(NAN);
  float amax = 0;
  LT_CPU(max_abs_cpu)(DType::bf16, &amax, x.data(), 100);
  CHECK(std::isnan(amax));
}

TEST_CASE("blocks: steps of 1 x 128 and of 128 x 128, in place and transposed") {
  auto stream = make_inline_stream("compute");
  const int64_t rows = 200, cols = 300;
  auto x = random_array<float>(rows * cols, 9);
  for (int64_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<float>(i % cols / 128 * 4));
  for (bool turn : {false, true})
    for (int64_t block_rows : {int64_t{1}, kFp8Block}) {
      const int64_t r = turn ? cols : rows, c = turn ? rows : cols;
      const int64_t step_rows = (r + block_rows - 1) / block_rows, step_cols = (c + 127) / 128;
      Guarded<uint8_t> codes(r * c);
      Guarded<float> steps(step_rows * step_cols);
      Tensor code_tensor = tensor_of(codes, {r, c});
      code_tensor.dtype = DType::f8e4m3;
      quantize_blocks(*stream, code_tensor, tensor_of(steps, {step_rows, step_cols}),
                      tensor_of(x, {rows, cols}), turn, block_rows);
      CHECK(codes.intact());
      CHECK(steps.intact());
      const auto at = [&](int64_t i, int64_t j) { return turn ? x[j * cols + i] : x[i * cols + j]; };
      int wrong = 0;
      for (int64_t bi = 0; bi < step_rows; ++bi)
        for (int64_t bj = 0; bj < step_cols; ++bj) {
          float amax = 0;
          const auto each = [&](auto&& f) {
            for (int64_t i = bi * block_rows; i < std::min(r, (bi + 1) * block_rows); ++i)
              for (int64_t j = bj * 128; j < std::min(c, (bj + 1) * 128); ++j) f(i, j);
          };
          each([&](int64_t i, int64_t j) { amax = std::max(amax, std::abs(at(i, j))); });
          const float step = fp8::step_of(amax, 8, 0);
          wrong += steps[bi * step_cols + bj] != step;
          each([&](int64_t i, int64_t j) { wrong += codes[i * c + j] != kE4m3.round(at(i, j) / step); });
        }
      CHECK(wrong == 0);
    }
}

TEST_CASE("steps follow from a history: the largest, the last, and nothing that is not finite") {
  auto stream = make_inline_stream("compute");
  Guarded<float> steps(2 * kFp8StepStride), amax(2), history(6);
  const int64_t second = kFp8StepStride;
  for (int64_t i = 0; i < 6; ++i) history[i] = 0;
  Fp8StepArgs args;
  args.period = 2;
  args.top[0] = 8, args.top[1] = 15;
  const auto next = [&](float a, float b) {
    amax[0] = a, amax[1] = b;
    update_fp8_steps(*stream, tensor_of(steps, {2, kFp8StepStride}), tensor_of(amax, {2}),
                     tensor_of(history, {2, 3}), args);
    CHECK(amax[0] == 0);
  };
  next(448, 57344);
  CHECK((steps[0] == 1 && steps[second] == 1));
  next(1, 2 * 57344.0f);
  CHECK((steps[0] == 1 && steps[second] == 2));
  next(NAN, 1);
  CHECK(steps[0] == 1);
  next(2 * 448, 1);  // 448 has left
  CHECK((steps[0] == 2 && steps[second] == 2));
  next(1, 1);
  next(1, 1);
  CHECK((steps[0] == 2 && steps[second] == fp8::step_of(1, 15, 0)));
  args.record = false;
  args.most_recent = true;
  amax[0] = 9;
  update_fp8_steps(*stream, tensor_of(steps, {2, kFp8StepStride}), tensor_of(amax, {2}),
                   tensor_of(history, {2, 3}), args);
  CHECK(steps[0] == fp8::step_of(1, 8, 0));
  CHECK(amax[0] == 9);
}

namespace {

template <class Out>
void check_product(int64_t m, int64_t n, int64_t k, bool blocks, bool accumulate, bool bias, double allowed) {
  INFO(m << "x" << n << "x" << k << (blocks ? " blocks" : "") << (accumulate ? " +=" : ""));
  auto stream = make_inline_stream("compute");
  const auto operand = [&](Guarded<bf16>& x, Guarded<uint8_t>& codes, Guarded<float>& steps, int64_t rows,
                           DType format, int64_t block_rows, std::vector<double>& values) {
    Fp8Operand o;
    o.of = tensor_of(x, {rows, k});
    o.codes = tensor_of(codes, {rows, k});
    o.codes.dtype = format;
    if (blocks) {
      o.block_rows = block_rows;
      o.steps = tensor_of(steps, {(rows + block_rows - 1) / block_rows, (k + 127) / 128});
      quantize_blocks(*stream, o.codes, o.steps, o.of, false, block_rows);
    } else {
      o.steps = tensor_of(steps, {1});
      steps[0] = 0.0078125f;
      quantize(*stream, o.codes, o.of, false, o.steps);
    }
    for (int64_t i = 0; i < rows * k; ++i) {
      const float step = blocks ? steps[i / k / block_rows * ((k + 127) / 128) + i % k / 128] : steps[0];
      values.push_back(double{format == DType::f8e4m3 ? E4m3::from(codes[i]) : E5m2::from(codes[i])} * step);
    }
    return o;
  };
  auto a = random_array<bf16>(m * k, 1), b = random_array<bf16>(n * k, 2);
  Guarded<uint8_t> codes_a(m * k), codes_b(n * k);
  Guarded<float> steps_a(blocks ? m * ((k + 127) / 128) : 1),
      steps_b(blocks ? (n + 127) / 128 * ((k + 127) / 128) : 1);
  std::vector<double> va, vb;
  const Fp8Operand oa = operand(a, codes_a, steps_a, m, DType::f8e5m2, 1, va);
  const Fp8Operand ob = operand(b, codes_b, steps_b, n, DType::f8e4m3, kFp8Block, vb);
  Guarded<Out> out = random_array<Out>(m * n, 3);
  auto add = random_array<Out>(n, 4);
  std::vector<double> want(m * n), unrounded(m * n);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = (accumulate ? as_double(out[i * n + j]) : 0) + (bias ? as_double(add[j]) : 0), plain = sum;
      for (int64_t l = 0; l < k; ++l) {
        sum += va[i * k + l] * vb[j * k + l];
        plain += as_double(a[i * k + l]) * as_double(b[j * k + l]);
      }
      want[i * n + j] = sum, unrounded[i * n + j] = plain;
    }
  MatmulArgs args;
  args.accumulate = accumulate;
  if (bias) args.bias = tensor_of(add, {n});
  matmul_fp8(*stream, tensor_of(out, {m, n}), oa, ob, args);
  CHECK(out.intact());
  CHECK(worst_error(out, want) < allowed);
  if (k > 8) CHECK(worst_error(out, unrounded) > 3 * allowed);  // result with operands that were not rounded
}

}  // namespace

TEST_CASE("products of FP8 equal the products of the rounded numbers") {
  for (bool blocks : {false, true})
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {37, 19, 140}, {65, 130, 300}}) {
      check_product<float>(m, n, k, blocks, false, false, 2e-5);
      check_product<float>(m, n, k, blocks, true, false, 2e-5);
      check_product<bf16>(m, n, k, blocks, false, true, 6e-3);
      check_product<double>(m, n, k, blocks, true, false, 1e-12);
    }
  check_product<float>(3, 2100, 40, false, false, true, 2e-5);  // several panels
}

TEST_CASE("tf32: products of operands rounded to 10 bits, to nearest even") {
  auto stream = make_inline_stream("compute");
  stream->tf32 = true;
  const auto rounded = [](float v) {
    const double unit = std::ldexp(1.0, std::ilogb(v) - 10);
    return std::nearbyint(v / unit) * unit;  // to even, in the default mode
  };
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {33, 20, 70}, {3, 2100, 40}})
    for (bool ta : {false, true})
      for (bool tb : {false, true})
        for (bool more : {false, true}) {
          auto a = random_array<float>(m * k, 1), b = random_array<float>(n * k, 2),
               out = random_array<float>(m * n, 3), bias = random_array<float>(n, 4);
          std::vector<double> want(m * n), plain(m * n);
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
              want[i * n + j] = plain[i * n + j] = more ? double{out[i * n + j]} : double{bias[j]};
              for (int64_t l = 0; l < k; ++l) {
                const float x = a[ta ? l * m + i : i * k + l], y = b[tb ? j * k + l : l * n + j];
                want[i * n + j] += rounded(x) * rounded(y);
                plain[i * n + j] += double{x} * y;
              }
            }
          MatmulArgs args;
          args.trans_a = ta, args.trans_b = tb, args.accumulate = more;
          if (!more) args.bias = tensor_of(bias, {n});
          matmul(*stream, tensor_of(out, {m, n}), tensor_of(a, ta ? Shape{k, m} : Shape{m, k}),
                 tensor_of(b, tb ? Shape{n, k} : Shape{k, n}), args);
          CHECK(out.intact());
          CHECK(worst_error(out, want) < 1e-5);
          if (k > 8) CHECK(worst_error(out, plain) > 3e-5);
        }
  // A tie, on either side of an even number, and NaN.
  Guarded<float> x(4), one(1), y(4);
  x[0] = 1 + 0x1p-11f, x[1] = 1 + 3 * 0x1p-11f, x[2] = INFINITY, x[3] = NAN, one[0] = 1;
  matmul(*stream, tensor_of(y, {4, 1}), tensor_of(x, {4, 1}), tensor_of(one, {1, 1}));
  CHECK((y[0] == 1 && y[1] == 1 + 0x1p-9f && std::isinf(y[2]) && std::isnan(y[3])));
}
