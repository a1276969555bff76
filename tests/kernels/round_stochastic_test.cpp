#include "kernels/optimizer/round_stochastic.h"

#include "kernels/tensor/rng.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("stochastic rounding: exact numbers stay, the mean of others is the number") {
  for (float v : {1.0f, -0.5f, 0.0f, 3.140625f, 256.0f})
    CHECK(stochastic_bits(v, 0xffffffffu) == bf16(v).bits);
  CHECK(stochastic_bits(INFINITY, 0xffffffffu) == 0x7f80);
  CHECK(std::isnan(static_cast<float>(std::bit_cast<bf16>(stochastic_bits(std::nanf(""), 0xffffffffu)))));
  for (float v : {1.001f, -3.2f, 1e-20f, 700.3f}) {
    double sum = 0;
    const int n = 40000;
    for (int i = 0; i < n; ++i)
      sum += static_cast<float>(
          std::bit_cast<bf16>(stochastic_bits(v, philox(3, 4, static_cast<uint64_t>(i)).v[0])));
    const double step = std::abs(v) * 0x1p-7;  // an upper bound of the distance of neighbours
    CHECK(std::abs(sum / n - v) < 4 * step / std::sqrt(static_cast<double>(n)));
    CHECK(std::abs(static_cast<float>(bf16(v)) - v) >
          4 * step / std::sqrt(static_cast<double>(n)));  // nearest
  }
}

TEST_CASE("stochastic rounding of a part is the part of the rounded whole, on every instruction set") {
  const int64_t rows = 37, cols = 53;
  const Guarded<float> whole = random_array<float>(rows * cols, 5);
  for (const auto& [isa, f] : BOTH_ISAS(round_stochastic_cpu)) {
    INFO(isa);
    BoxElements all;
    all.rank = 2;
    all.global[0] = all.extent[0] = rows, all.global[1] = all.extent[1] = cols;
    Guarded<bf16> want(rows * cols);
    f(want.data(), whole.data(), rows * cols, 7, 8, all);
    BoxElements part = all;  // rows 5 to 30, columns 11 to 41, from the 17th element on
    part.offset[0] = 5, part.extent[0] = 25, part.offset[1] = 11, part.extent[1] = 30, part.begin = 17;
    const int64_t n = 25 * 30 - 17 - 9;
    Guarded<float> from(n);
    std::vector<int64_t> at;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t k = i + 17;
      at.push_back((5 + k / 30) * cols + 11 + k % 30);
      from[i] = whole[at.back()];
    }
    for (int threads : {1, 2})
      with_threads(threads, [&] {
        Guarded<bf16> got(n);
        f(got.data(), from.data(), n, 7, 8, part);
        CHECK(got.intact());
        int wrong = 0;
        for (int64_t i = 0; i < n; ++i) wrong += got[i].bits != want[at[static_cast<size_t>(i)]].bits;
        CHECK(wrong == 0);
      });
    Guarded<bf16> other(rows * cols);
    f(other.data(), whole.data(), rows * cols, 8, 8, all);
    CHECK(other.bits() != want.bits());
  }
}
