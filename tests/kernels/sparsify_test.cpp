#include "kernels/optimizer/sparsify.h"

#include <algorithm>
#include <array>
#include <bit>

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// The two of largest magnitude by a sort that keeps the order of equals.
std::vector<bool> chosen(const std::vector<double>& w) {
  std::vector<bool> stays(w.size());
  for (size_t i = 0; i < w.size(); i += 4) {
    std::array<size_t, 4> order{i, i + 1, i + 2, i + 3};
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return std::abs(w[a]) > std::abs(w[b]); });
    const auto zeros =
        std::count(w.begin() + static_cast<int64_t>(i), w.begin() + static_cast<int64_t>(i) + 4, 0.0);
    for (size_t k = 0; k < 4; ++k) stays[order[k]] = k < 2 || zeros >= 2;
  }
  return stays;
}

template <class X, class W>
void check_pair(DType tx, DType tw) {
  for (const auto& [isa, keep] : BOTH_ISAS(prune_2_4_cpu))
    for (int threads : {1, 2}) {
      INFO(isa << " " << dtype_name(tx) << " by " << dtype_name(tw) << ", " << threads << " threads");
      const int64_t n = 4 * 9001;  // several parts of parallel_for
      Guarded<W> w = random_array<W>(n, 3);
      for (int64_t i = 0; i < n; ++i)
        if (i % 7 == 0) w[i] = W(i % 14 ? 0.5f : -0.5f);  // ties, of either sign
      for (int64_t i = 0; i < 400; ++i) w[i] = i % 3 ? W(0.0f) : w[i];
      const std::string before = w.bits();
      const std::vector<bool> stays = chosen(doubles(w));
      Guarded<X> x = random_array<X>(n, 4, 5);
      const std::vector<double> given = doubles(x);
      with_threads(threads, [&] { keep(tx, tw, x.data(), w.data(), n); });
      CHECK(x.intact());
      CHECK(w.bits() == before);
      int wrong = 0, zeros = 0;
      for (int64_t i = 0; i < n; ++i) {
        const size_t k = static_cast<size_t>(i);
        wrong += as_double(x[i]) != (stays[k] ? given[k] : 0.0);
        zeros += !stays[k];
      }
      CHECK(wrong == 0);
      CHECK(zeros > n * 2 / 5);
    }
}

}  // namespace

TEST_CASE("2:4 sparse: the largest stay, of equals the first, whatever is masked along with them") {
  check_pair<float, float>(DType::f32, DType::f32);
  check_pair<double, double>(DType::f64, DType::f64);
  check_pair<bf16, float>(DType::bf16, DType::f32);
  check_pair<float, bf16>(DType::f32, DType::bf16);
  check_pair<f16, float>(DType::f16, DType::f32);
  const auto kept = [](std::array<float, 4> w) { return largest_two_of_4(w.data()); };
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
  for (const auto& [isa, keep] : BOTH_ISAS(prune_2_4_cpu)) {
    INFO(isa);
    const int64_t n = 4 * 777;
    Guarded<float> w = random_array<float>(n, 6);
    const std::vector<bool> stays = chosen(doubles(w));
    keep(DType::f32, DType::f32, w.data(), w.data(), n);
    const std::string once = w.bits();
    int wrong = 0;
    for (int64_t i = 0; i < n; ++i) wrong += (w[i] != 0) != stays[static_cast<size_t>(i)];
    CHECK(wrong == 0);
    keep(DType::f32, DType::f32, w.data(), w.data(), n);
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
