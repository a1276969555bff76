// The unbiased estimator of 2:4 sparse gradients, against numbers written here from its definition.
#include "kernels/matmul/sparse/prune_unbiased.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct PruneJob {
  int64_t rows = 12, cols = 7;
  std::vector<int64_t> samples{7, 100, 31};
  RowRandomArgs random;

  PruneJob() {
    random.seed = 3, random.stream = hash_name("layer.weight");
    random.sample_index = samples.data();
    random.rows.seq = random.rows.total = 4;
  }
  PruneJob(const PruneJob&) = delete;
  int64_t elements() const { return rows * cols; }
};

/// Columns `range` of dy pruned by one instruction set of the machine; others are -5.
template <class T>
Guarded<T> pruned(const PruneJob& j, const Guarded<T>& dy, ColumnRange range, size_t isa = 0) {
  Guarded<T> out(j.elements());
  for (int64_t i = 0; i < j.elements(); ++i) out[i] = T(-5);
  BOTH_ISAS(prune_unbiased_cpu)
  [isa].second(dtype_of<T>::value, out.data(), dy.data(), j.rows, j.cols, j.random, range);
  CHECK(out.intact());
  return out;
}

/// The definition, pair by pair.
template <class T>
Guarded<T> pruned_by_definition(const PruneJob& j, const Guarded<T>& dy, ColumnRange range) {
  using A = compute_t<T>;
  Guarded<T> out(j.elements());
  for (int64_t i = 0; i < j.elements(); ++i) out[i] = T(-5);
  const int64_t channels = range.count * j.random.parts, calls = (channels + 3) / 4;
  for (int64_t row = 0; row < j.rows; row += 2)
    for (int64_t c = 0; c < range.count; ++c) {
      const int64_t at = row * j.cols + range.first + c, channel = j.random.part * range.count + c;
      const A a = static_cast<A>(as_double(dy[at])), b = static_cast<A>(as_double(dy[at + j.cols]));
      const int64_t token = j.samples[static_cast<size_t>(row / 4)] * 4 + row % 4;
      const uint32_t word =
          philox(j.random.seed, j.random.stream, static_cast<uint64_t>(token * calls + channel / 4))
              .v[channel % 4];
      const A sum = std::abs(a) + std::abs(b);
      const bool first = A(static_cast<double>(word >> 8) / 16777216.0) * sum < std::abs(a);
      put(&out[at], 0, first ? (a < 0 ? -sum : sum) : A(0));
      put(&out[at + j.cols], 0, first ? A(0) : (b < 0 ? -sum : sum));
    }
  return out;
}

}  // namespace

TEST_CASE("an unbiased pruning is its definition, in each type, instruction set and column range") {
  for (size_t isa = 0; isa < BOTH_ISAS(prune_unbiased_cpu).size(); ++isa)
    for (const ColumnRange range : {ColumnRange{0, 7}, {2, 5}, {3, 1}, {0, 4}, {1, 0}})
      for (const int64_t parts : {1, 3})
        each_float([&]<class T>() {
          INFO("isa " << isa << ", columns " << range.first << " + " << range.count << ", parts " << parts);
          PruneJob j;
          j.random.parts = parts, j.random.part = parts - 1;
          const Guarded<T> dy = random_array<T>(j.elements(), 5, 3);
          CHECK(doubles(pruned(j, dy, range, isa)) == doubles(pruned_by_definition(j, dy, range)));
        });
}

TEST_CASE("an unbiased pruning leaves one of each two neighbouring tokens, so two of each four") {
  const PruneJob j;
  const Guarded<float> dy = random_array<float>(j.elements(), 5), out = pruned(j, dy, {0, j.cols});
  for (int64_t row = 0; row < j.rows; row += 2)
    for (int64_t c = 0; c < j.cols; ++c) {
      const int64_t a = row * j.cols + c, b = a + j.cols;
      CHECK((out[a] == 0) != (out[b] == 0));
      CHECK(std::abs(out[a] + out[b]) == std::abs(dy[a]) + std::abs(dy[b]));
      CHECK(std::signbit(out[out[a] == 0 ? b : a]) == std::signbit(dy[out[a] == 0 ? b : a]));
    }
}

TEST_CASE("an unbiased pruning of a rank's columns or rows is a part of that of all") {
  PruneJob whole;
  whole.cols = 9;
  const Guarded<double> dy = random_array<double>(whole.elements(), 5);
  const Guarded<double> want = pruned(whole, dy, {0, 9});
  for (int64_t part = 0; part < 3; ++part) {
    PruneJob j;
    j.cols = 9;
    j.random.part = part, j.random.parts = 3;
    const Guarded<double> got = pruned(j, dy, {part * 3, 3});
    for (int64_t i = 0; i < j.elements(); ++i) CHECK(got[i] == (i % 9 / 3 == part ? want[i] : -5.0));
  }
  PruneJob rows;  // the second half of the rows
  rows.cols = 9, rows.rows = 6;
  rows.random.rows.first_row = 6;
  Guarded<double> below(rows.elements());
  for (int64_t i = 0; i < rows.elements(); ++i) below[i] = dy[i + 54];
  const Guarded<double> got = pruned(rows, below, {0, 9});
  for (int64_t i = 0; i < rows.elements(); ++i) CHECK(got[i] == want[i + 54]);
}

TEST_CASE("the mean over 10,000 seeds of an unbiased pruning, and of a weight gradient, is exact") {
  PruneJob j;
  j.rows = 8, j.cols = 6;
  Guarded<double> dy = random_array<double>(j.elements(), 12);
  dy[2] = 0;
  dy[3] = dy[9] = 0;  // both of a pair
  const int64_t inputs = 3, seeds = 10000;
  const Guarded<double> x = random_array<double>(j.rows * inputs, 13);
  // The elements, then dW = dy^T x.
  const auto with_gradient = [&](const auto& of, bool square) {
    std::vector<double> all;
    for (int64_t i = 0; i < j.elements(); ++i) all.push_back(of[static_cast<size_t>(i)]);
    for (int64_t c = 0; c < j.cols; ++c)
      for (int64_t k = 0; k < inputs; ++k) {
        double sum = 0;
        for (int64_t row = 0; row < j.rows; row += square ? 2 : 1) {
          const auto at = static_cast<size_t>(row * j.cols + c);
          const double x0 = x[row * inputs + k];
          if (square) {  // the variance of a pair: |a b| (x0 sign(a) - x1 sign(b))^2
            const double a = dy[row * j.cols + c], b = dy[(row + 1) * j.cols + c];
            sum += std::abs(a * b) *
                   std::pow(std::copysign(x0, x0 * a) -
                                std::copysign(x[(row + 1) * inputs + k], x[(row + 1) * inputs + k] * b),
                            2);
          } else {
            sum += of[at] * x0;
          }
        }
        all.push_back(sum);
      }
    return all;
  };
  std::vector<double> sums(static_cast<size_t>(j.elements() + j.cols * inputs)), variances;
  for (int64_t seed = 0; seed < seeds; ++seed) {
    j.random.seed = static_cast<uint64_t>(seed);
    const std::vector<double> got = with_gradient(doubles(pruned(j, dy, {0, j.cols})), false);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += got[i];
  }
  for (int64_t i = 0; i < j.elements(); ++i)
    variances.push_back(std::abs(dy[i] * dy[i + (i / j.cols % 2 == 0 ? j.cols : -j.cols)]));
  variances = with_gradient(variances, true);
  const std::vector<double> exact = with_gradient(doubles(dy), false);
  double worst = 0;
  for (size_t i = 0; i < sums.size(); ++i)
    worst = std::max(worst,
                     (std::abs(sums[i] / seeds - exact[i]) - 1e-9) / std::sqrt(variances[i] / seeds + 1e-18));
  INFO("worst of " << sums.size() << " means: " << worst << " standard errors");
  CHECK(worst < 4);
  CHECK(worst > 1);  // the estimates differ
}

TEST_CASE("an unbiased pruning keeps zeros, a number beside a zero, and what is not finite") {
  PruneJob j;
  j.cols = 8;
  each_float([&]<class T>() {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
    const double tiny = as_double(std::is_same_v<T, double> ? T(5e-324) : T(1e-7));
    const double above[] = {0, 2, 0, tiny, inf, nan, 3, -inf}, below[] = {0, 0, -3, 0, 1, 2, nan, inf};
    Guarded<T> dy(j.elements());
    for (int64_t i = 0; i < j.elements(); ++i)
      dy[i] = T(static_cast<compute_t<T>>(i / 8 % 2 == 0 ? above[i % 8] : below[i % 8]));
    for (uint64_t seed = 0; seed < 20; ++seed) {
      j.random.seed = seed;
      const std::vector<double> out = doubles(pruned(j, dy, {0, 8}));
      for (int64_t row = 0; row < j.rows; row += 2) {
        const double* a = &out[static_cast<size_t>(row * 8)];
        const double* b = a + 8;
        CHECK((a[0] == 0 && b[0] == 0));
        CHECK((a[1] == 2 && b[1] == 0));
        CHECK((a[2] == 0 && b[2] == -3));
        CHECK((a[3] == as_double(dy[3]) && b[3] == 0));
        CHECK((a[4] == inf && b[4] == 0));
        CHECK((std::isnan(a[5]) && b[5] == 0));
        CHECK((a[6] == 0 && std::isnan(b[6])));
        CHECK((a[7] == -inf && b[7] == 0));
      }
    }
  });
}

TEST_CASE("an unbiased pruning refuses odd rows, other types and columns outside") {
  auto stream = make_inline_stream("compute");
  Guarded<float> x(24), y(24);
  Guarded<double> wide(24);
  const RowRandom random;
  CHECK_THROWS_WITH(prune_unbiased(*stream, tensor_of(y, {3, 8}), tensor_of(x, {3, 8}), random, {0, 8}),
                    Catch::Contains("expected an even number of rows, got 3"));
  CHECK_THROWS_WITH(prune_unbiased(*stream, tensor_of(wide, {4, 6}), tensor_of(x, {4, 6}), random, {0, 6}),
                    Catch::Contains("expected out f32"));
  CHECK_THROWS_WITH(prune_unbiased(*stream, tensor_of(y, {4, 6}), tensor_of(x, {4, 6}), random, {4, 3}),
                    Catch::Contains("expected columns within 6, got 3 from 4 on"));
}
