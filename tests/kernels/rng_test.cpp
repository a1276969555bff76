// The counter generator, dropout, rounding to halves.
#include "kernels/tensor/rng.h"

#include "kernels/elementwise/dropout.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("Philox4x32-10 gives the known answers of Random123") {
  struct Answer {
    uint64_t index, stream, seed;
    uint32_t v[4];
  };
  // Counter words 0,1 are the index, 2,3 the stream; the key is the seed (kat_vectors of Random123).
  const Answer answers[] = {{0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                            {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                            {0x85a308d3243f6a88ull,
                             0x0370734413198a2eull,
                             0x299f31d0a4093822ull,
                             {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Answer& a : answers) {
    const Philox4 got = philox(a.seed, a.stream, a.index);
    for (int i = 0; i < 4; ++i) CHECK(got.v[i] == a.v[i]);
  }
}

TEST_CASE("normal values have the moments of a normal distribution, and seeds and streams differ") {
  const int64_t n = 200000;
  double mean = 0, square = 0, cube = 0, fourth = 0, tail = 0, cross = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = normal_value(1, 2, i);
    mean += x / n, square += x * x / n, cube += x * x * x / n, fourth += x * x * x * x / n;
    tail += (std::abs(x) > 1.959964) / static_cast<double>(n);
    cross += x * normal_value(1, 3, i) / n;
  }
  CHECK(std::abs(mean) < 0.01);
  CHECK(std::abs(square - 1) < 0.02);
  CHECK(std::abs(cube) < 0.04);
  CHECK(std::abs(fourth - 3) < 0.1);
  CHECK(std::abs(tail - 0.05) < 0.003);
  CHECK(std::abs(cross) < 0.01);
  CHECK(normal_value(1, 2, 5) != normal_value(2, 2, 5));
}

TEST_CASE("dropout drops its share, scales the rest, and is its own backward") {
  const int64_t seq = 16, batch = 8, cols = 131, n = batch * seq * cols;
  std::vector<int64_t> samples;
  for (int64_t b = 0; b < batch; ++b) samples.push_back(7 * b + 3);
  for (double p : {0.1, 0.5, 0.99}) {
    const DropoutArgs args{{5, hash_name("layer"), samples.data(), {seq}},
                           dropout_threshold(p),
                           static_cast<float>(1 / (1 - p))};
    each_float([&]<class T>() {
      for (const auto& [isa, f] : BOTH_ISAS(dropout_cpu)) {
        INFO(isa << " p " << p);
        Guarded<T> x(n), y(n);
        for (int64_t i = 0; i < n; ++i) x[i] = T(1.0f);
        with_threads(1, [&] { f(dtype_of<T>::value, y.data(), x.data(), batch * seq, cols, args); });
        CHECK(y.intact());
        int64_t kept = 0, odd = 0;
        const double scaled = as_double(T(static_cast<compute_t<T>>(args.scale)));
        for (int64_t i = 0; i < n; ++i) {
          const double v = as_double(y[i]);
          kept += v != 0;
          odd += v != 0 && v != scaled;
        }
        CHECK(odd == 0);
        const double share = static_cast<double>(kept) / n, sigma = std::sqrt(p * (1 - p) / n);
        CHECK(std::abs(share - (1 - p)) < 5 * sigma);
        // The same mask on a gradient, in place and with two threads.
        with_threads(2, [&] { f(dtype_of<T>::value, x.data(), x.data(), batch * seq, cols, args); });
        CHECK(x.bits() == y.bits());
      }
    });
  }
}

TEST_CASE("a dropout mask follows the sample, wherever it stands in a batch") {
  const int64_t seq = 6, cols = 10;
  const int64_t forward[2] = {4, 9}, swapped[2] = {9, 4};
  Guarded<float> x(2 * seq * cols), a(x.size()), b(x.size());
  for (int64_t i = 0; i < x.size(); ++i) x[i] = 1;
  DropoutArgs args{{5, 6, forward, {seq}}, dropout_threshold(0.5), 2.0f};
  for (const auto& [isa, f] : BOTH_ISAS(dropout_cpu)) {
    args.sample_index = forward;
    f(DType::f32, a.data(), x.data(), 2 * seq, cols, args);
    args.sample_index = swapped;
    f(DType::f32, b.data(), x.data(), 2 * seq, cols, args);
    const size_t half = seq * cols * 4;
    CHECK(a.bits().substr(0, half) == b.bits().substr(half));
    CHECK(a.bits().substr(half) == b.bits().substr(0, half));
    CHECK(a.bits().substr(0, half) != a.bits().substr(half));
  }
}

TEST_CASE("bf16 rounds to nearest, ties to even, on every pattern") {
  // Every bf16 value, the point half way to the next, and one float on each side of it.
  int64_t wrong = 0;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    const float exact = std::bit_cast<float>(high << 16);
    if (std::isnan(exact)) {
      for (uint32_t low : {0u, 1u, 0x8000u, 0xffffu})
        wrong += !std::isnan(static_cast<float>(bf16(std::bit_cast<float>(high << 16 | low))));
      continue;
    }
    wrong += bf16(exact).bits != high;
    if ((high & 0x7fff) == 0x7f80) continue;  // infinity: what follows is NaN
    wrong += bf16(std::bit_cast<float>(high << 16 | 0x7fff)).bits != high;
    wrong += bf16(std::bit_cast<float>(high << 16 | 0x8000)).bits != ((high & 1) ? high + 1 : high);
    wrong += bf16(std::bit_cast<float>(high << 16 | 0x8001)).bits != high + 1;
  }
  CHECK(wrong == 0);
  // A signalling NaN whose payload is in the lower half stays NaN.
  CHECK(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("f16 rounds to nearest, ties to even, on every pattern") {
  int wrong = 0;
  for (uint32_t h = 0; h < 0x7c00u; ++h) {  // every finite magnitude, by the definition of the format
    const int exponent = static_cast<int>(h >> 10), fraction = static_cast<int>(h & 0x3ffu);
    const double exact = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    const double step = std::ldexp(1, exponent ? exponent - 25 : -24), half = exact + step / 2;
    const float tie = static_cast<float>(half), below = std::nextafter(tie, 0.0f),
                above = std::nextafter(tie, 1e9f);
    wrong += static_cast<float>(std::bit_cast<f16>(static_cast<uint16_t>(h))) != static_cast<float>(exact);
    wrong += f16(static_cast<float>(exact)).bits != h;
    wrong += f16(static_cast<float>(-exact)).bits != (h | 0x8000u);
    wrong += f16(below).bits != h;
    wrong += f16(tie).bits != ((h & 1) ? h + 1 : h);  // 65520 becomes infinity
    wrong += f16(above).bits != h + 1;
    wrong += f16(-above).bits != ((h + 1) | 0x8000u);
  }
  CHECK(wrong == 0);
  CHECK(f16(1e30f).bits == 0x7c00);
  CHECK(f16(-INFINITY).bits == 0xfc00);
  CHECK(f16(1e-30f).bits == 0);
  CHECK(std::isnan(static_cast<float>(f16(std::nanf("")))));
  CHECK(std::isnan(static_cast<float>(std::bit_cast<f16>(uint16_t{0x7c01}))));
  CHECK(static_cast<float>(std::bit_cast<f16>(uint16_t{0xfc00})) == -INFINITY);
}
