// f32 matmuls that skip zeros beside the same matmuls of all numbers, in turn, as JSON: y = x W^T and dx = dy
// W, W (n, k) with `kept` other values in each `group`, and dW = dy^T x, dy (m, n) with two zeros in each
// four rows of a column. "prune" are the seconds of making such a dy. sparse_speed [m n k [rounds [threads
// [kept group]]]], 2 of 4 unless given.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/matmul/matmul.h"
#include "kernels/matmul/sparse/prune_unbiased.h"

namespace {

using namespace ltrain;

Tensor tensor(std::vector<float>& of, int64_t rows, int64_t cols) {
  Tensor t;
  t.data = of.data(), t.shape = {rows, cols};
  return t;
}

template <class F>
double seconds(F f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// One of the three matmuls, with and without its zeros.
struct Product {
  const char* name;
  Tensor out, a, b;
  MatmulArgs args;
};

/// Prints pairs of seconds and whether the bits are the same.
void print_pairs(Stream& s, const Product& p, int64_t rounds) {
  bool same = true;
  std::vector<char> other(static_cast<size_t>(p.out.bytes()));
  MatmulArgs dense = p.args;
  dense.sparse_a = dense.sparse_b = false;
  std::printf(", \"%s\": [", p.name);
  for (int64_t i = -1; i < rounds; ++i) {
    const double all = seconds([&] { matmul(s, p.out, p.a, p.b, dense); });
    std::memcpy(other.data(), p.out.data, other.size());
    const double some = seconds([&] { matmul(s, p.out, p.a, p.b, p.args); });
    same = same && std::memcmp(other.data(), p.out.data, other.size()) == 0;
    if (i >= 0) std::printf("%s[%.6f, %.6f]", i > 0 ? ", " : "", all, some);
  }
  std::printf("], \"%s_same\": %s", p.name, same ? "true" : "false");
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int64_t otherwise) { return argc > i ? std::atoll(argv[i]) : otherwise; };
  const int64_t m = argument(1, 1024), n = argument(2, 2048), k = argument(3, 2048), rounds = argument(4, 10);
  const int64_t kept = argument(6, 2), group = argument(7, 4);
  if (m < 4 || n < 1 || k < 4 || m % 4 != 0 || rounds < 1 || kept < 1 || kept > group || k % group != 0) {
    std::fprintf(
        stderr,
        "sparse_speed: expected m of a multiple of 4, k of a multiple of group, kept from 1 to group, "
        "and n and rounds of at least 1\n");
    return 64;
  }
  omp_set_num_threads(static_cast<int>(argument(5, 1)));
  auto stream = make_inline_stream("compute");
  const auto elements = [](int64_t rows, int64_t cols) { return static_cast<size_t>(rows * cols); };
  std::vector<float> x(elements(m, k)), w(elements(n, k)), y(elements(m, n)), dx(elements(m, k)),
      dw(elements(n, k)), dy(elements(m, n));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& each : x) each = normal(random);
  for (float& each : dy) each = normal(random);
  std::vector<size_t> order(static_cast<size_t>(group));
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = 0; i < w.size(); i += order.size()) {
    std::shuffle(order.begin(), order.end(), random);
    for (size_t j = 0; j < static_cast<size_t>(kept); ++j) w[i + order[j]] = normal(random);
  }
  std::printf("{\"m\": %ld, \"n\": %ld, \"k\": %ld, \"threads\": %d", m, n, k, omp_get_max_threads());
  const Tensor weight = tensor(w, n, k), input = tensor(x, m, k);
  MatmulArgs args;
  args.trans_b = args.sparse_b = true;
  print_pairs(*stream, {"forward", tensor(y, m, n), input, weight, args}, rounds);
  args.trans_b = false;
  print_pairs(*stream, {"backward", tensor(dx, m, k), tensor(y, m, n), weight, args}, rounds);
  int64_t sample = 0;
  RowRandom numbers;
  numbers.sample_index.data = &sample, numbers.sample_index.dtype = DType::i64;
  numbers.rows.seq = m;
  std::printf(", \"prune\": [");
  for (int64_t i = 0; i < rounds; ++i)
    std::printf("%s%.6f", i > 0 ? ", " : "", seconds([&] {
                  prune_unbiased(*stream, tensor(y, m, n), tensor(dy, m, n), numbers, {0, n});
                }));
  std::printf("]");
  args = {};
  args.trans_a = args.sparse_a = true;
  print_pairs(*stream, {"gradient", tensor(dw, n, k), tensor(y, m, n), input, args}, rounds);
  std::printf("}\n");
}
