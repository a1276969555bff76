// Matmuls that skip zeros of one operand: the bits of those that multiply all.
#include "kernels/matmul/matmul_sparse.h"

#include <array>
#include <cmath>
#include <thread>
#include <vector>

#include "kernels/matmul/matmul.h"
#include "kernels/meta/meta_memory.h"
#include "kernels/tensor/parallel_for.h"
#include "kernels/tensor/stream.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

enum class Zeros { none, two_four_sparsity, in_columns, many, all };

/// (rows, cols) with zeros, some of them negative.
Guarded<float> matrix(int64_t rows, int64_t cols, Zeros zeros) {
  Guarded<float> w = random_array<float>(rows * cols, 7);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      const int64_t at = zeros == Zeros::in_columns ? i : j, other = i + j - at;
      const bool zero =
          zeros == Zeros::all || (zeros == Zeros::many && (i * 31 + j * 17) % 29 != 0) ||
          ((zeros == Zeros::two_four_sparsity || zeros == Zeros::in_columns) && (at + other) % 4 < 2);
      if (zero) w[i * cols + j] = j % 3 == 0 ? -0.0F : 0.0F;
    }
  return w;
}

struct SparseCase {
  int64_t m, n, k;
  bool trans_b, accumulate, bias;
};

Guarded<float> product(const SparseCase& c, Guarded<float>& a, Guarded<float>& b, bool sparse) {
  auto bias = random_array<float>(c.n, 3);
  Guarded<float> out = random_array<float>(c.m * c.n, 4);
  auto stream = make_inline_stream("compute");
  MatmulArgs args;
  args.trans_b = c.trans_b, args.accumulate = c.accumulate, args.sparse_b = sparse;
  if (c.bias) args.bias = tensor_of(bias, {c.n});
  matmul(*stream, tensor_of(out, {c.m, c.n}), tensor_of(a, {c.m, c.k}),
         tensor_of(b, c.trans_b ? Shape{c.n, c.k} : Shape{c.k, c.n}), args);
  return out;
}

}  // namespace

TEST_CASE("matmuls that skip zeros have the bits of those that multiply all") {
  const std::vector<std::array<int64_t, 3>> sizes{{128, 1, 1},    {128, 16, 64},   {129, 61, 130},
                                                  {130, 257, 63}, {300, 40, 1100}, {129, 2100, 530}};
  for (const auto& [m, n, k] : sizes)
    for (const Zeros zeros :
         {Zeros::none, Zeros::two_four_sparsity, Zeros::in_columns, Zeros::many, Zeros::all})
      for (const bool trans : {false, true})
        for (const auto& [accumulate, bias] :
             std::vector<std::pair<bool, bool>>{{false, false}, {true, false}, {false, true}}) {
          const SparseCase c{
              .m = m, .n = n, .k = k, .trans_b = trans, .accumulate = accumulate, .bias = bias};
          INFO(m << "x" << n << "x" << k << (trans ? " b^T" : "") << (accumulate ? " +=" : "")
                 << (bias ? " bias" : "") << ", zeros " << static_cast<int>(zeros));
          auto a = random_array<float>(m * k, 1);
          Guarded<float> b = matrix(trans ? n : k, trans ? k : n, zeros);
          const auto all = product(c, a, b, false);
          for (int threads : {1, 2})
            with_threads(threads, [&] {
              const auto some = product(c, a, b, true);
              CHECK(some.intact());
              CHECK(some.bits() == all.bits());
            });
        }
}

TEST_CASE("weight gradients that skip zeros of dy have the bits of those that multiply all") {
  // outputs, inputs, tokens
  const std::vector<std::array<int64_t, 3>> sizes{{1, 128, 1},    {16, 128, 64},   {61, 129, 130},
                                                  {257, 130, 63}, {40, 300, 1100}, {2100, 129, 530}};
  for (const auto& [outputs, inputs, tokens] : sizes)
    for (const Zeros zeros :
         {Zeros::none, Zeros::two_four_sparsity, Zeros::in_columns, Zeros::many, Zeros::all})
      for (const bool accumulate : {false, true}) {
        INFO(outputs << "x" << inputs << " of " << tokens << " tokens" << (accumulate ? " +=" : "")
                     << ", zeros " << static_cast<int>(zeros));
        auto x = random_array<float>(tokens * inputs, 1);
        Guarded<float> dy = matrix(tokens, outputs, zeros);
        const auto gradient = [&, outputs = outputs, inputs = inputs, tokens = tokens](bool sparse) {
          Guarded<float> dw = random_array<float>(outputs * inputs, 4);
          auto stream = make_inline_stream("compute");
          MatmulArgs args;
          args.trans_a = true, args.accumulate = accumulate, args.sparse_a = sparse;
          matmul(*stream, tensor_of(dw, {outputs, inputs}), tensor_of(dy, {tokens, outputs}),
                 tensor_of(x, {tokens, inputs}), args);
          return dw;
        };
        const auto all = gradient(false);
        for (int threads : {1, 2})
          with_threads(threads, [&] {
            const auto some = gradient(true);
            CHECK(some.intact());
            CHECK(some.bits() == all.bits());
          });
      }
}

TEST_CASE("matmuls that skip zeros: each instruction set has the same bits, and keeps what is not finite") {
  const int64_t m = 70, n = 50, k = 200;
  const auto a = random_array<float>(m * k, 1);
  Guarded<float> b = matrix(n, k, Zeros::two_four_sparsity);
  b[3 * k + 2] = NAN;
  std::string bits;
  for (const auto& [isa, f] : BOTH_ISAS(matmul_sparse_cpu)) {
    INFO(isa);
    Guarded<float> out(m * n);
    f({.out = out.data(), .a = a.data(), .b = b.data(), .m = m, .n = n, .k = k, .trans_b = true});
    CHECK(out.intact());
    for (int64_t i = 0; i < m * n; ++i) REQUIRE(std::isnan(out[i]) == (i % n == 3));
    for (int64_t i = 0; i < m; ++i) out[i * n + 3] = 0;
    CHECK((bits.empty() || out.bits() == bits));
    bits = out.bits();
  }
}

TEST_CASE("matmuls that skip zeros hold what the plan counts") {
  for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{40, 77}, {kSparseCols + 100, 700}}) {
    int64_t held = 0;
    std::thread([&, n = n, k = k] {  // a new thread has no scratch memory
      omp_set_num_threads(1);
      const int64_t before = scratch_bytes();
      auto a = random_array<float>(130 * k, 1);
      Guarded<float> b = matrix(n, k, Zeros::none);
      product({.m = 130, .n = n, .k = k, .trans_b = true, .accumulate = false, .bias = false}, a, b, true);
      held = scratch_bytes() - before;
    })
        .join();
    const auto bytes = sparse_pack_bytes(n, k);
    const int64_t counted = bytes[0] + bytes[1] + bytes[2];
    CHECK(held >= counted);
    CHECK(held < counted + 3 * 4096);  // pages
    int64_t of_gradient = 0;
    std::thread([&, n = n, k = k] {
      omp_set_num_threads(1);
      const int64_t before = scratch_bytes();
      auto x = random_array<float>(130 * k, 1);
      Guarded<float> dy = matrix(k, n, Zeros::none), dw(n * 130);
      LT_CPU(matmul_sparse_cpu)
      ({.out = dw.data(), .a = x.data(), .b = dy.data(), .m = 130, .n = n, .k = k, .gradient = true});
      of_gradient = scratch_bytes() - before;
    }).join();
    CHECK(of_gradient == held);
  }
}

TEST_CASE("only f32 matmuls of many rows skip zeros, and a trace names them") {
  struct Row {
    DType type;
    int64_t rows, cols;
    bool trans_a, trans_b, sparse;
    const char* name;
    bool accumulate = false;
  };
  const DType f32 = DType::f32;
  for (const Row& r : std::vector<Row>{{f32, 128, 8, false, true, true, "matmul_nt_sparse"},
                                       {f32, 128, 8, false, false, true, "matmul_nn_sparse"},
                                       {f32, 8, 128, true, false, true, "matmul_tn_sparse"},
                                       {f32, 8, 128, true, false, true, "matmul_tn_add_sparse", true},
                                       {f32, 8, 128, true, false, false, "matmul_tn_add", true},
                                       {f32, 128, 8, true, false, true, "matmul_tn"},
                                       {f32, 8, 128, true, true, true, "matmul_tn"},
                                       {f32, 128, 8, false, true, false, "matmul_nt"},
                                       {f32, 127, 8, false, true, true, "matmul_nt"},
                                       {DType::bf16, 128, 8, false, true, true, "matmul_nt"},
                                       {DType::f64, 8, 128, true, false, true, "matmul_tn"}}) {
    MetaTrace trace;
    MetaMemory memory{trace};
    const auto stream = make_meta_stream("compute", trace);
    const auto matrix = [&](const char* name, int64_t rows, int64_t cols, bool turned) {
      const Tensor t = memory.allocate(MemoryKind::activations, name, r.type,
                                       turned ? Shape{cols, rows} : Shape{rows, cols});
      t.record->written = true;
      return t;
    };
    MatmulArgs args;
    args.trans_a = r.trans_a, args.trans_b = r.trans_b, args.accumulate = r.accumulate;
    args.sparse_a = r.sparse && r.trans_a, args.sparse_b = r.sparse && !r.trans_a;
    matmul(*stream, matrix("out", r.rows, r.cols, false), matrix("a", r.rows, 16, r.trans_a),
           matrix("b", 16, r.cols, r.trans_b), args);
    REQUIRE(trace.entries().size() == 1);
    CHECK(trace.entries()[0].name == r.name);
    CHECK(trace.entries()[0].flops == 2.0 * static_cast<double>(r.rows * r.cols) * 16);
  }
}
