// The rules of cuBLASLt that the real call and its stand-in share: each breach is named.
#include "kernels/matmul/cublaslt_rules.h"

#include <catch2/catch.hpp>

using namespace ltrain;
using Catch::Contains;

namespace {

alignas(64) char memory[256];

Tensor at(int64_t byte, DType t, Shape shape) {
  Tensor x;
  x.data = memory + byte, x.dtype = t, x.shape = shape;
  return x;
}

const float* scale_at(int64_t byte) { return reinterpret_cast<const float*>(memory + byte); }

struct Fp8Case {
  DType a = DType::f8e4m3, b = DType::f8e4m3, out = DType::bf16;
  int64_t m = 3, n = 32, k = 48, a_at = 0, b_at = 16, out_at = 32, scale_a = 48, scale_b = 64;

  std::string obstacle(bool bias = false, bool trans_b = true) const {
    MatmulArgs args;
    args.trans_b = trans_b;
    if (bias) args.bias = at(0, out, {n});
    return cublaslt_obstacle(at(out_at, out, {m, n}), at(a_at, a, {m, k}), at(b_at, b, {n, k}),
                             scale_at(scale_a), scale_at(scale_b), args);
  }
};

}  // namespace

TEST_CASE("cuBLASLt takes FP8 operands that begin, and have scales, at multiples of 16 bytes") {
  CHECK(Fp8Case{}.obstacle().empty());
  CHECK(Fp8Case{.out = DType::f32}.obstacle().empty());
  CHECK(Fp8Case{.a = DType::f8e5m2}.obstacle(true).empty());
  CHECK_THAT(Fp8Case{.scale_a = 52}.obstacle(),
             Contains("scale of the left operand") && Contains("16 bytes"));
  CHECK_THAT(Fp8Case{.scale_b = 68}.obstacle(), Contains("scale of the right operand"));
  CHECK_THAT(Fp8Case{.a_at = 8}.obstacle(), Contains("the left operand lies at"));
  CHECK_THAT(Fp8Case{.b_at = 24}.obstacle(), Contains("the right operand lies at"));
  CHECK_THAT(Fp8Case{.out_at = 40}.obstacle(), Contains("the output lies at"));
  CHECK_THAT(Fp8Case{.k = 40}.obstacle(), Contains("a contraction of 40: expected a multiple of 16"));
  CHECK_THAT(Fp8Case{.n = 40}.obstacle(), Contains("40 output columns"));
  CHECK_THAT((Fp8Case{.a = DType::f8e5m2, .b = DType::f8e5m2}.obstacle()),
             Contains("two operands of f8e5m2"));
  CHECK_THAT(Fp8Case{.out = DType::f64}.obstacle(), Contains("an output of f64"));
  CHECK_THAT(Fp8Case{.out = DType::f32}.obstacle(true), Contains("a bias beside an f32 output"));
  CHECK_THAT((Fp8Case{.n = 48}.obstacle(false, false)), Contains("read along the contraction"));
}

TEST_CASE("cuBLASLt takes other operands wherever their elements may lie, but none without elements") {
  const auto obstacle = [](DType in, DType out, int64_t byte, int64_t m) {
    return cublaslt_obstacle(at(0, out, {m, 5}), at(byte, in, {m, 7}), at(16, in, {7, 5}), nullptr, nullptr,
                             {});
  };
  CHECK(obstacle(DType::bf16, DType::f32, 2, 3).empty());
  CHECK(obstacle(DType::f32, DType::f32, 4, 3).empty());
  CHECK_THAT(obstacle(DType::f32, DType::f32, 2, 3), Contains("expected a multiple of 4 bytes"));
  CHECK_THAT(obstacle(DType::bf16, DType::bf16, 0, 0), Contains("without elements"));
  CHECK_THAT(obstacle(DType::bf16, DType::f16, 0, 3), Contains("bf16 times bf16 into f16"));
}
