// Measurement of matmuls that skip zeros.
#include <omp.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/sparse_gemm.h"
#include "kernels/optimizer/sparsify.h"
#include "kernels/tensor/arena.h"
#include "kernels/tensor/timeline.h"
#include "runtime/bench/bench.h"

namespace ltrain {
namespace {

constexpr int kRounds = 20;

/// Fewest seconds of the matmul with all values and without zeros, in turn, after a first round. Other work
/// on the machine only adds to seconds.
std::array<double, 2> dense_and_sparse(Stream& s, const Tensor& out, const Tensor& a, const Tensor& b,
                                       const MatmulArgs& sparse) {
  MatmulArgs dense = sparse;
  dense.sparse_a = dense.sparse_b = false;
  constexpr double kMost = std::numeric_limits<double>::max();
  std::array<double, 2> fewest{kMost, kMost};
  for (int round = 0; round <= kRounds; ++round)
    for (const size_t skips : {0, 1}) {
      const double begin = steady_seconds();
      matmul(s, out, a, b, skips == 1 ? sparse : dense);
      if (round > 0) fewest[skips] = std::min(fewest[skips], steady_seconds() - begin);
    }
  return fewest;
}

}  // namespace

void bench_sparse_matmul(MachineProfile& profile, int64_t size) {
  const int threads_before = omp_get_max_threads();
  omp_set_num_threads(1);
  const int64_t rows = std::max(kFewestSparseRows, size / 2);
  const auto stream = make_inline_stream("bench");
  CpuArena arena((3 * rows + 2 * size) * size * 4 + 8 * Memory::kAlignment);
  uint64_t seed = 0;
  const auto make = [&](int64_t m, int64_t n) {
    const Tensor t = arena.allocate(MemoryKind::temporaries, "values to measure by", DType::f32, {m, n});
    fill_normal(*stream, t, 1, ++seed, 0, 0, 1);
    return t;
  };
  const Tensor x = make(rows, size), y = make(rows, size), dx = make(rows, size), w = make(size, size),
               dw = make(size, size);
  prune(*stream, w, w, SparsePattern{});
  std::array<double, 2> sum{};
  const auto add = [&](const Tensor& out, const Tensor& a, const Tensor& b, const MatmulArgs& args) {
    const std::array<double, 2> times = dense_and_sparse(*stream, out, a, b, args);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += times[i];
  };
  MatmulArgs args;
  args.sparse_b = args.trans_b = true;
  add(y, x, w, args);
  args.trans_b = false;
  add(dx, y, w, args);
  prune(*stream, y, y, SparsePattern{});  // in place of pairs of tokens: zeros may lie anywhere
  args = {};
  args.sparse_a = args.trans_a = true;
  add(dw, y, x, args);
  profile.sparse_matmul_speedup = std::clamp(sum[0] / sum[1], kLeastSparseSpeedup, kMostSparseSpeedup);
  omp_set_num_threads(threads_before);
}

}  // namespace ltrain
