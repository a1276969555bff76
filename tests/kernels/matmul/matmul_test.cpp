#include "kernels/matmul/matmul_packed.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/stream.h"
#include "tests/kernels/op_support.h"
#include "tests/support/outcome.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct DenseCase {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false, accumulate = false, bias = false;
};

/// In: type of a and b; Out: type of the result.
template <class In, class Out>
void check_case(const DenseCase& c, double allowed) {
  auto a = random_array<In>(c.m * c.k, 1), b = random_array<In>(c.k * c.n, 2);
  auto bias = random_array<Out>(c.n, 3);
  const auto old = random_array<Out>(c.m * c.n, 4);
  std::vector<double> want(c.m * c.n);
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < c.k; ++l)
        sum += as_double(a[c.trans_a ? l * c.m + i : i * c.k + l]) *
               as_double(b[c.trans_b ? j * c.k + l : l * c.n + j]);
      want[i * c.n + j] =
          sum + (c.bias ? as_double(bias[j]) : 0) + (c.accumulate ? as_double(old[i * c.n + j]) : 0);
    }
  auto stream = make_inline_stream("compute");
  std::string bits;
  for (int threads : {1, 2})
    with_threads(threads, [&] {
      Guarded<Out> out = old;
      MatmulArgs args;
      args.trans_a = c.trans_a, args.trans_b = c.trans_b, args.accumulate = c.accumulate;
      if (c.bias) args.bias = tensor_of(bias, {c.n});
      matmul(*stream, tensor_of(out, {c.m, c.n}), tensor_of(a, c.trans_a ? Shape{c.k, c.m} : Shape{c.m, c.k}),
             tensor_of(b, c.trans_b ? Shape{c.n, c.k} : Shape{c.k, c.n}), args);
      INFO(c.m << "x" << c.n << "x" << c.k << (c.trans_a ? " a^T" : "") << (c.trans_b ? " b^T" : "")
               << (c.accumulate ? " +=" : "") << (c.bias ? " bias" : "") << ", " << threads << " threads");
      CHECK(out.intact());
      CHECK(worst_error(out, want) < allowed);
      CHECK((threads == 1 || out.bits() == bits));
      bits = out.bits();
    });
}

template <class In, class Out>
void check_all(double allowed, bool accumulate = true, bool bias = true) {
  const std::vector<std::array<int64_t, 3>> sizes{{1, 1, 1},     {1, 7, 33},    {37, 1, 5},    {1, 700, 300},
                                                  {2, 33, 70},   {3, 50, 16},   {5, 19, 129},  {8, 400, 200},
                                                  {65, 61, 130}, {64, 257, 48}, {130, 40, 300}};
  for (const auto& [m, n, k] : sizes)
    for (bool ta : {false, true})
      for (bool tb : {false, true}) {
        check_case<In, Out>({m, n, k, ta, tb, false, false}, allowed);
        if (accumulate) check_case<In, Out>({m, n, k, ta, tb, true, false}, allowed);
        if (bias) check_case<In, Out>({m, n, k, ta, tb, false, true}, allowed);
      }
}

void check_bf16() {
  check_all<bf16, bf16>(6e-3);
  check_all<bf16, float>(2e-5, true, /*bias=*/false);
}

}  // namespace

TEST_CASE("f16 matmul equals its double reference: sums in fp32, one rounding") {
  check_all<f16, f16>(1e-3);
  check_all<f16, float>(2e-5, true, /*bias=*/false);
}

TEST_CASE("f32 matmul equals its double reference in every layout") { check_all<float, float>(2e-5); }

TEST_CASE("f64 matmul equals its double reference in every layout") { check_all<double, double>(1e-12); }

TEST_CASE("f64 matmul on each instruction set") {
  for (const auto& [isa, f] : BOTH_ISAS(matmul_f64_cpu))
    for (bool ta : {false, true})
      for (bool tb : {false, true})
        for (bool add : {false, true}) {
          INFO(isa << ta << tb << add);
          const int64_t m = 61, n = 131, k = 259;
          const auto a = random_array<double>(m * k, 1), b = random_array<double>(k * n, 2),
                     bias = random_array<double>(n, 3);
          Guarded<double> out = random_array<double>(m * n, 4);
          std::vector<double> want(m * n);
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
              double sum = bias[j] + (add ? out[i * n + j] : 0);
              for (int64_t l = 0; l < k; ++l)
                sum += a[ta ? l * m + i : i * k + l] * b[tb ? j * k + l : l * n + j];
              want[i * n + j] = sum;
            }
          f(out.data(), a.data(), b.data(), bias.data(), m, n, k, ta, tb, add);
          CHECK(out.intact());
          CHECK(worst_error(out, want) < 1e-12);
        }
}

TEST_CASE("bf16 matmul in the mode that the environment asks for", "[.bf16_child]") {
  const std::string asked = std::getenv("LTRAIN_BF16_MATMUL");
  REQUIRE(bf16_matmul() == (asked == "pairs"    ? Bf16Matmul::pairs
                            : asked == "onednn" ? Bf16Matmul::onednn
                                                : Bf16Matmul::widen));
  check_bf16();
}

TEST_CASE("bf16 matmul equals its double reference, in every way that this CPU has") {
  // The mode is read once a process: each in a process of its own.
  const std::string self = "/proc/" + std::to_string(getpid()) + "/exe";
  CHECK(std::system(("LTRAIN_BF16_MATMUL=widen " + self + " '[.bf16_child]' > /dev/null").c_str()) == 0);
  // Without the instructions the others are refused, as the one after them is everywhere.
  std::ifstream info("/proc/cpuinfo");
  const std::string cpu{std::istreambuf_iterator<char>(info), {}};
  const bool has = std::string(cpu_isa_name()) == "avx512" && cpu.find(" avx512_bf16") != std::string::npos;
  for (const char* way : {"pairs", "onednn"}) {
    INFO(way);
    const std::string run =
        std::string("LTRAIN_BF16_MATMUL=") + way + " " + self + " '[.bf16_child]' > /dev/null";
    CHECK((std::system(run.c_str()) == 0) == has);
  }
  // Negative control: the child fails on a mode that does not exist.
  CHECK(std::system(("LTRAIN_BF16_MATMUL=quick " + self + " '[.bf16_child]' > /dev/null").c_str()) != 0);
}

TEST_CASE("native bf16 products on a CPU with AVX-512") {
  if (std::string(cpu_isa_name()) != "avx512")
    skip_test("native bf16 products: this CPU has no AVX-512, or this build no kernels for it");
}

TEST_CASE("products of more than one block along every dim") {
  check_case<float, float>({2 * kRowBlock + 3, 2, 5, true, false, true}, 2e-5);
  check_case<float, float>({9, kColBlock + 1, 5, false, true, true}, 2e-5);
  check_case<float, float>({9, 5, 2 * kDepthBlock + 3, true, true, false, true}, 5e-5);
  check_case<float, float>({kRowBlock + 1, kColBlock + 35, kDepthBlock + 17}, 5e-5);
  check_case<f16, f16>({kHalfRows + 3, kHalfCols + 5, 3}, 1e-3);
  check_case<f16, f16>({19, 2 * kHalfCols + 5, 2 * kDepthBlock + 3, false, true, false, true}, 2e-3);
}

TEST_CASE("an element's sum does not depend on the sizes, nor on the instruction set") {
  const int64_t m = 100, n = 90, k = 700;
  const auto a = random_array<float>(m * k, 1), b = random_array<float>(k * n, 2);
  const auto product = [&](auto f, int64_t rows, int64_t cols) {
    Guarded<float> out(rows * cols);
    f({.out = out.data(),
       .a = {.data = a.data(), .stride = k, .transposed = true},
       .b = {.data = b.data(), .stride = n},
       .m = rows,
       .n = cols,
       .k = k});
    CHECK(out.intact());
    return std::vector<float>(out.data(), out.data() + rows * cols);
  };
  const auto whole = product(LT_CPU(matmul_packed_cpu), m, n);
  for (const auto& [isa, f] : BOTH_ISAS(matmul_packed_cpu)) {
    INFO(isa);
    CHECK(product(f, m, n) == whole);
    for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {13, 17}, {99, 33}}) {
      const auto part = product(f, rows, cols);
      bool same = true;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) same = same && part[i * cols + j] == whole[i * n + j];
      CHECK(same);
    }
  }
}

TEST_CASE("matmul refuses shapes and types that do not fit") {
  auto stream = make_inline_stream("compute");
  Guarded<float> a(6), b(12), out(8);
  Guarded<bf16> low(6);
  CHECK_THROWS_WITH(matmul(*stream, tensor_of(out, {2, 4}), tensor_of(a, {3, 2}), tensor_of(b, {3, 4})),
                    Catch::Contains("got a [3, 2], b [3, 4], out [2, 4]"));
  CHECK_THROWS_WITH(matmul(*stream, tensor_of(out, {2, 4}), tensor_of(low, {2, 3}), tensor_of(b, {3, 4})),
                    Catch::Contains("got a bf16, b f32, out f32"));
  CHECK_NOTHROW(matmul(*stream, tensor_of(out, {2, 4}), tensor_of(a, {2, 3}), tensor_of(b, {3, 4})));
}

namespace {

/// Bytes of panels of packed products of T: of each kind the most that is counted, and all that is held.
template <class T>
void check_panels() {
  // In a thread of its own, whose scratch is new; every thread of the kernel is that one.
  const int64_t m = 300, n = kColBlock + 100, k = 77;
  int64_t held = 0;
  std::array<int64_t, 3> most{};
  std::thread([&] {
    omp_set_num_threads(1);
    const int64_t before = scratch_bytes();
    auto stream = make_inline_stream("compute");
    for (bool low : {false, true}) {
      Guarded<T> a = random_array<T>(m * k, 1), b = random_array<T>(k * n, 2), out(m * n);
      Guarded<float> wide(m * n);
      matmul(*stream, low ? tensor_of(out, {m, n}) : tensor_of(wide, {m, n}), tensor_of(a, {m, k}),
             tensor_of(b, {k, n}));
      const DType type = dtype_of<T>::value;
      const auto bytes = packed_bytes(m, n, k, type, low ? type : DType::f32);
      for (int i = 0; i < 3; ++i) most[i] = std::max(most[i], bytes[i]);
    }
    held = scratch_bytes() - before;
  }).join();
  const int64_t counted = most[0] + most[1] + most[2];
  CHECK(held >= counted);
  CHECK(held < counted + 3 * 4096);  // pages
}

}  // namespace

TEST_CASE("the panels of packed products are what the plan counts") {
  check_panels<f16>();
  if (packs(DType::bf16)) check_panels<bf16>();  // no op of oneDNN
}
