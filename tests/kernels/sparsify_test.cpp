#include "kernels/optimizer/sparsify.h"
#include "base/json/json.h"

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <numeric>

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// The `kept` of largest magnitude of each group by a sort that keeps the order of equals; all of a group
/// with as few nonzero numbers.
std::vector<bool> chosen(const std::vector<double>& w, const SparsePattern& p = {}) {
  std::vector<bool> stays(w.size());
  const auto group = static_cast<size_t>(p.group), kept = static_cast<size_t>(p.kept);
  for (size_t i = 0; i < w.size(); i += group) {
    std::vector<size_t> order(group);
    std::iota(order.begin(), order.end(), i);
    const auto zeros =
        static_cast<size_t>(std::count_if(order.begin(), order.end(), [&](size_t k) { return w[k] == 0; }));
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return std::abs(w[a]) > std::abs(w[b]); });
    for (size_t k = 0; k < group; ++k) stays[order[k]] = k < kept || zeros >= group - kept;
  }
  return stays;
}

template <class X, class W>
void check_pair(DType tx, DType tw, const SparsePattern& p = {}) {
  for (const auto& [isa, keep] : BOTH_ISAS(prune_cpu))
    for (int threads : {1, 2}) {
      INFO(isa << " " << dtype_name(tx) << " by " << dtype_name(tw) << ", " << threads << " threads");
      const int64_t n = 16 * 2251;  // several parts of parallel_for
      Guarded<W> w = random_array<W>(n, 3);
      for (int64_t i = 0; i < n; ++i)
        if (i % 7 == 0) w[i] = W(i % 14 ? 0.5f : -0.5f);  // ties, of either sign
      for (int64_t i = 0; i < 400; ++i) w[i] = i % 3 ? W(0.0f) : w[i];
      const std::string before = w.bits();
      const std::vector<bool> stays = chosen(doubles(w), p);
      Guarded<X> x = random_array<X>(n, 4, 5);
      const std::vector<double> given = doubles(x);
      with_threads(threads, [&] { keep(tx, tw, x.data(), w.data(), p, n); });
      CHECK(x.intact());
      CHECK(w.bits() == before);
      int wrong = 0, zeros = 0;
      for (int64_t i = 0; i < n; ++i) {
        const size_t k = static_cast<size_t>(i);
        wrong += as_double(x[i]) != (stays[k] ? given[k] : 0.0);
        zeros += !stays[k];
      }
      CHECK(wrong == 0);
      CHECK(zeros > n * (p.group - p.kept) / p.group * 4 / 5);
    }
}

}  // namespace

TEST_CASE("2:4 sparse: the largest stay, of equals the first, whatever is masked along with them") {
  check_pair<float, float>(DType::f32, DType::f32);
  check_pair<double, double>(DType::f64, DType::f64);
  check_pair<bf16, float>(DType::bf16, DType::f32);
  check_pair<float, bf16>(DType::f32, DType::bf16);
  check_pair<f16, float>(DType::f16, DType::f32);
  for (const auto& [kept, group] : {std::pair(1, 4), {3, 4}, {4, 8}, {2, 8}, {3, 16}})
    check_pair<float, float>(DType::f32, DType::f32, {.kept = kept, .group = group});
  // The bits that pruning keeps of ones.
  const auto kept = [](const std::array<float, 4>& w) {
    std::array<float, 4> x{1, 1, 1, 1};
    LT_CPU(prune_cpu)(DType::f32, DType::f32, x.data(), w.data(), {}, 4);
    return static_cast<unsigned>(x[0] + 2 * x[1] + 4 * x[2] + 8 * x[3]);
  };
  CHECK(kept({1, -1, 1, 1}) == 0b0011);
  CHECK(kept({1, 2, -3, 2}) == 0b0110);
  CHECK(kept({0, 1, 2, 3}) == 0b1100);
  CHECK(kept({0, 0, 1, 2}) == 0b1111);  // 2:4 sparse already: a third number may be a zero that moves
  CHECK(kept({-0.0f, 0, 0, 0}) == 0b1111);
  const float nan = std::nanf("");  // never more than two, whatever the numbers are
  for (const std::array<float, 4>& w :
       {std::array{nan, 1.f, 2.f, 3.f}, {1.f, nan, 2.f, nan}, {nan, nan, nan, nan}})
    CHECK(std::popcount(kept(w)) == 2);
}

TEST_CASE("2:4 sparse in place, and again: the second time changes nothing") {
  for (const auto& [isa, keep] : BOTH_ISAS(prune_cpu)) {
    INFO(isa);
    const int64_t n = 4 * 777;
    Guarded<float> w = random_array<float>(n, 6);
    const std::vector<bool> stays = chosen(doubles(w));
    keep(DType::f32, DType::f32, w.data(), w.data(), {}, n);
    const std::string once = w.bits();
    int wrong = 0;
    for (int64_t i = 0; i < n; ++i) wrong += (w[i] != 0) != stays[static_cast<size_t>(i)];
    CHECK(wrong == 0);
    keep(DType::f32, DType::f32, w.data(), w.data(), {}, n);
    CHECK(w.bits() == once);
    CHECK(w.intact());
  }
}

TEST_CASE("masking by zeros: of either sign, and what is not finite is masked too") {
  for (const auto& [isa, mask] : BOTH_ISAS(mask_by_zeros_cpu)) {
    INFO(isa);
    const int64_t n = 40003;
    Guarded<float> w = random_array<float>(n, 8);
    for (int64_t i = 0; i < n; i += 3) w[i] = i % 2 ? -0.0f : 0.0f;
    Guarded<double> x = random_array<double>(n, 9);
    x[3] = INFINITY, x[6] = std::nan("");
    const std::vector<double> given = doubles(x);
    mask(DType::f64, DType::f32, x.data(), w.data(), n);
    int wrong = 0;
    for (int64_t i = 0; i < n; ++i) wrong += x[i] != (i % 3 ? given[static_cast<size_t>(i)] : 0.0);
    CHECK(wrong == 0);
    CHECK(x.intact());
  }
}

namespace {

/// Blocks of the golden file side by side: `across` in a row of blocks.
struct Blocks {
  int64_t rows = 0, cols = 0;
  std::vector<double> w;
  std::vector<bool> mask;
};

Blocks blocks(int64_t across) {
  std::ifstream file(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/sparsity/blocks.json");
  const auto all = nlohmann::json::parse(file);
  const auto down = static_cast<int64_t>(all.size()) / across;
  Blocks b{.rows = 4 * down, .cols = 4 * across, .w = {}, .mask = {}};
  b.w.resize(static_cast<size_t>(b.rows * b.cols));
  b.mask.resize(b.w.size());
  for (int64_t i = 0; i < b.rows * b.cols; ++i) {
    const auto& block = all[static_cast<size_t>(i / b.cols / 4 * across + i % b.cols / 4)];
    const auto k = static_cast<size_t>(i / b.cols % 4 * 4 + i % 4);
    b.w[static_cast<size_t>(i)] = block["w"][k].get<double>();
    b.mask[static_cast<size_t>(i)] = block["mask"][k] == 1;
  }
  return b;
}

/// Elements of a row or a column of a block that are not zero: at most two.
template <class T>
int most_in_lines(const T* w, int64_t rows, int64_t cols) {
  int most = 0;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      int row = 0, column = 0;
      for (int64_t k = 0; k < 4; ++k) {
        row += w[i * cols + j / 4 * 4 + k] != 0;
        column += w[(i / 4 * 4 + k) * cols + j] != 0;
      }
      most = std::max({most, row, column});
    }
  return most;
}

}  // namespace

TEST_CASE("transposable masks are the best of all that numpy tries") {
  for (int64_t across : {1, 5})
    for (const auto& [isa, keep] : BOTH_ISAS(prune_cpu)) {
      INFO(isa << ", " << across << " blocks in a row");
      const Blocks b = blocks(across);
      REQUIRE(b.w.size() > 2000);
      const auto n = static_cast<int64_t>(b.w.size());
      std::vector<double> x(b.w.size(), 1.0);
      keep(DType::f64, DType::f64, x.data(), b.w.data(), {.cols = b.cols}, n);
      int wrong = 0, pruned = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        // Zeros may be masked or not.
        wrong += b.w[i] != 0 && (x[i] != 0) != b.mask[i];
        pruned += x[i] == 0;
      }
      CHECK(wrong == 0);
      CHECK(pruned > n / 4);
      std::vector<double> once = b.w;
      keep(DType::f64, DType::f64, once.data(), once.data(), {.cols = b.cols}, n);
      CHECK(most_in_lines(once.data(), b.rows, b.cols) == 2);
      std::vector<double> twice = once;
      keep(DType::f64, DType::f64, twice.data(), twice.data(), {.cols = b.cols}, n);
      CHECK(once == twice);
    }
}

TEST_CASE("transposable masks of equal and of infinite numbers are masks, too") {
  const float inf = INFINITY, nan = std::nanf("");
  for (const float v : {1.0f, -3.0f, inf, nan}) {
    std::vector<float> w(16 * 6, v), x(w.size(), 1.0f);
    w[5] = 2, w[20] = -inf;
    LT_CPU(prune_cpu)(DType::f32, DType::f32, x.data(), w.data(), {.cols = 12}, 16 * 6);
    CHECK(most_in_lines(x.data(), 8, 12) == 2);
    CHECK(std::count(x.begin(), x.end(), 1.0f) == 8 * 6);
  }
}

TEST_CASE("masks that move: chosen by dense weights, kept in the sign of zeros, decayed where they are") {
  const auto check = [](auto low_type, auto wide, DType tl, DType tw) {
    using L = decltype(low_type);
    using W = decltype(wide);
    for (const auto& [isa, choose] : BOTH_ISAS(choose_mask_cpu))
      for (const SparsePattern& p : {SparsePattern{}, {.kept = 1, .group = 8}, {.cols = 32}}) {
        INFO(isa << " " << dtype_name(tl) << ", " << p.kept << ":" << p.group << ", " << p.cols);
        const int64_t n = 128 * 40;
        Guarded<W> w = random_array<W>(n, 3), next = random_array<W>(n, 4);
        for (int64_t i = 0; i < n; i += 3) w[i] = i % 2 ? W(0) : -W(0);  // kept zeros are +0
        for (int64_t i = 1; i < n; i += 7) next[i] = W(-1e-8);  // and so are kept ones that fp16 rounds to -0
        Guarded<L> low = random_array<L>(n, 5);
        Guarded<float> revived = random_array<float>(n, 6);
        choose(tl, DType::f32, low.data(), w.data(), revived.data(), p, n);
        const auto masked = [&](int64_t i) {
          return as_double(low[i]) == 0 && std::signbit(as_double(low[i]));
        };
        std::vector<bool> first;
        int wrong = 0;
        for (int64_t i = 0; i < n; ++i) {
          first.push_back(masked(i));
          wrong += !masked(i) && as_double(low[i]) != as_double(L(static_cast<compute_t<L>>(w[i])));
          wrong += revived[i] != 0;
        }
        CHECK(wrong == 0);
        CHECK(std::count(first.begin(), first.end(), false) == n * p.kept / p.group);  // always as many
        // A copy of other weights has the same mask.
        Guarded<W> grad = random_array<W>(n, 7);
        const std::vector<double> before = doubles(grad);
        LT_CPU(masked_copy_cpu)(tl, low.data(), next.data(), n);
        LT_CPU(masked_decay_cpu)(tw, tl, grad.data(), low.data(), next.data(), 0.25, n);
        for (int64_t i = 0; i < n; ++i) {
          const size_t k = static_cast<size_t>(i);
          wrong += masked(i) != first[k];
          wrong += !masked(i) && as_double(low[i]) != as_double(L(static_cast<compute_t<L>>(next[i])));
          const double decayed = before[k] + (first[k] ? 0.25 * as_double(next[i]) : 0);
          wrong += std::abs(as_double(grad[i]) - decayed) > 1e-6;
        }
        CHECK(wrong == 0);
        // New masks say which weights are back.
        choose(tl, DType::f32, low.data(), next.data(), revived.data(), p, n);
        int back = 0;
        for (int64_t i = 0; i < n; ++i) {
          wrong += (revived[i] == 1) != (first[static_cast<size_t>(i)] && !masked(i));
          back += revived[i] == 1;
        }
        CHECK(wrong == 0);
        CHECK(back > 0);
        choose(tl, DType::f32, low.data(), next.data(), nullptr, {.kept = 4, .group = 4}, n);  // no mask
        for (int64_t i = 0; i < n; ++i) wrong += masked(i);
        CHECK(wrong == 0);
        CHECK((low.intact() && revived.intact() && grad.intact()));
      }
  };
  check(float(), float(), DType::f32, DType::f32);
  check(double(), double(), DType::f64, DType::f64);
  check(bf16(), float(), DType::bf16, DType::f32);
  check(f16(), float(), DType::f16, DType::f32);
}

TEST_CASE("sparse patterns refuse groups that are not full") {
  const auto s = make_inline_stream("test");
  std::vector<float> values(64);
  const auto of = [&](int64_t n) {
    Tensor t;
    t.data = values.data();
    t.shape = {n};
    return t;
  };
  CHECK_THROWS_WITH(prune(*s, of(12), of(12), {.kept = 2, .group = 8}), Catch::Contains("a multiple of 8"));
  CHECK_THROWS_WITH(prune(*s, of(32), of(32), {.cols = 12}), Catch::Contains("a multiple of 48"));
  CHECK_THROWS_WITH(choose_mask(*s, of(8), of(4), {}, {}),
                    Catch::Contains("expected 8 elements of w, got 4"));
}
