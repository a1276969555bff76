// Ops whose random numbers are functions of sample, position and channel: dropout, and codes of 8 bits for
// saved activations, against numbers written here from the definition.
#include "kernels/elementwise/dropout.h"
#include "kernels/elementwise/group_codes.h"

#include <cmath>
#include <limits>

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct RowRandomJob {
  SectionedRows rows;
  int64_t samples[2] = {7, 100};
  RowRandomArgs random;
  RowRandomJob(int64_t count, int64_t sections, int64_t width) {
    rows = {.rows = count, .sections = sections, .width = width};
    random.seed = 3, random.stream = hash_name("layer.tensor");
    random.sample_index = samples;
    random.rows.seq = random.rows.total = (count + 1) / 2;
  }
  RowRandomJob(const RowRandomJob&) = delete;
  int64_t cols() const { return rows.sections * rows.width; }
  int64_t elements() const { return rows.rows * cols(); }
  int64_t scales() const { return rows.rows * rows.sections * rows.groups(); }

  /// Instruction sets of this build that the machine has.
  static int isas() { return static_cast<int>(BOTH_ISAS(encode_groups_cpu).size()); }

  /// x as codes and back. `isa`: below isas().
  template <class T>
  std::vector<double> through(const Guarded<T>& x, bool fp8, int isa = 0) const {
    const DType t = dtype_of<T>::value;
    Guarded<uint8_t> codes(elements());
    Guarded<compute_t<T>> scales_of(scales());
    Guarded<T> out(elements());
    BOTH_ISAS(encode_groups_cpu)
    [static_cast<size_t>(isa)].second(t, fp8, codes.data(), scales_of.data(), x.data(), rows, random);
    BOTH_ISAS(decode_groups_cpu)
    [static_cast<size_t>(isa)].second(t, fp8, out.data(), codes.data(), scales_of.data(), rows);
    CHECK((codes.intact() && scales_of.intact() && out.intact() && out.all_written()));
    return doubles(out);
  }
};

/// The definition, element by element. `part` of `parts` as in RowRandomArgs.
template <class T>
std::vector<double> rounded_by_definition(const RowRandomJob& j, const Guarded<T>& x, bool fp8) {
  using A = compute_t<T>;
  std::vector<double> out;
  const int64_t seq = j.random.rows.seq, width = j.rows.width;
  const int64_t calls = (j.cols() * j.random.parts + 3) / 4;
  for (int64_t i = 0; i < j.elements(); ++i) {
    const int64_t row = i / j.cols(), section = i % j.cols() / width, c = i % width;
    const int64_t first = i - c % 128, last = std::min(first + 128, i - c + width);
    A most = 0;
    for (int64_t k = first; k < last; ++k) most = std::max(most, std::abs(static_cast<A>(as_double(x[k]))));
    const A scale = most / A(fp8 ? 448 : 127), v = static_cast<A>(as_double(x[i])) / scale;
    A code;
    if (fp8) {
      code = fp8::from_e4m3(fp8::to_e4m3(static_cast<float>(v)));
    } else {
      const int64_t token = j.samples[row / seq] * seq + row % seq;
      const int64_t channel = (section * j.random.parts + j.random.part) * width + c;
      const uint32_t word =
          philox(j.random.seed, j.random.stream, static_cast<uint64_t>(token * calls + channel / 4))
              .v[channel % 4];
      const double fraction = v - std::floor(v);
      code = std::floor(v) + (((word >> 9) + 0.5) / 8388608.0 < fraction ? 1 : 0);
    }
    T rounded;
    put(&rounded, 0, code * scale);
    out.push_back(as_double(rounded));
  }
  return out;
}

}  // namespace

TEST_CASE("dropout of a part of the channels drops what dropout of all of them drops there") {
  constexpr int64_t kRows = 7, kSeq = 3;
  const std::vector<int64_t> samples{5, 11, 2};
  for (const auto& [isa, run] : BOTH_ISAS(dropout_cpu))
    for (const auto& [cols, parts] : {std::pair<int64_t, int64_t>{5, 3}, {4, 2}, {1, 7}, {33, 2}, {6, 1}}) {
      INFO(isa << " " << cols << " columns of " << parts << " parts");
      DropoutArgs d;
      d.threshold = dropout_threshold(0.4);
      d.scale = 2;
      d.seed = 3;
      d.stream = 9;
      d.sample_index = samples.data();
      d.rows = {kSeq, 0, kSeq};
      const int64_t all = cols * parts;
      std::vector<double> ones(kRows * all, 1), whole(kRows * all), part(kRows * cols);
      run(DType::f64, whole.data(), ones.data(), kRows, all, d);
      double kept = 0;
      for (double v : whole) kept += v != 0;
      if (all > 10) CHECK((kept > 0.4 * whole.size() && kept < 0.8 * whole.size()));
      d.parts = parts;
      for (d.part = 0; d.part < parts; ++d.part) {
        run(DType::f64, part.data(), ones.data(), kRows, cols, d);
        for (int64_t r = 0; r < kRows; ++r)
          for (int64_t c = 0; c < cols; ++c) CHECK(part[r * cols + c] == whole[r * all + d.part * cols + c]);
      }
    }
}

TEST_CASE("codes of groups are rounded by the counter of sample, position and channel") {
  for (bool fp8 : {false, true})
    for (const auto& [sections, width] :
         {std::pair<int64_t, int64_t>{1, 128}, {1, 37}, {2, 130}, {2, 384}, {1, 1}})
      for (int isa = 0; isa < RowRandomJob::isas(); ++isa) {
        INFO("fp8 " << fp8 << " sections " << sections << " of " << width << " isa " << isa);
        const RowRandomJob j(10, sections, width);
        const auto check = [&]<class T>(const Guarded<T>& x) {
          CHECK(j.through(x, fp8, isa) == rounded_by_definition(j, x, fp8));
        };
        check(random_array<float>(j.elements(), 5, 3));
        check(random_array<double>(j.elements(), 6, 1e-3));
        check(random_array<bf16>(j.elements(), 7, 40));
        check(random_array<f16>(j.elements(), 8));
      }
}

TEST_CASE("codes of tensor-parallel ranks are those of one process, section by section") {
  const RowRandomJob whole(6, 2, 512);
  const Guarded<float> x = random_array<float>(whole.elements(), 9);
  const std::vector<double> want = whole.through(x, false);
  const int64_t parts = 4, width = 512 / parts;
  int64_t wrong = 0;
  for (int part = 0; part < parts; ++part) {
    RowRandomJob j(6, 2, width);
    j.random.part = part, j.random.parts = parts;
    Guarded<float> mine(j.elements());
    const auto at = [&](int64_t i) { return i / width * 512 + part * width + i % width; };
    for (int64_t i = 0; i < j.elements(); ++i) mine[i] = x[at(i)];
    const std::vector<double> got = j.through(mine, false);
    for (int64_t i = 0; i < j.elements(); ++i)
      wrong += got[static_cast<size_t>(i)] != want[static_cast<size_t>(at(i))];
  }
  CHECK(wrong == 0);
}

TEST_CASE("the mean of int8 codes over 10,000 seeds is the number itself, and so is that of a gradient") {
  RowRandomJob j(2, 1, 128);
  const Guarded<double> x = random_array<double>(j.elements(), 12), dy = random_array<double>(2, 13);
  const int64_t seeds = 10000;
  // Elements, and a weight gradient dy^T x of one output: linear in the saved tensor.
  const auto with_gradient = [](std::vector<double> v, double first, double second) {
    for (size_t c = 0; c < 128; ++c) v.push_back(first * v[c] + second * v[128 + c]);
    return v;
  };
  std::vector<double> sums(384);
  for (int64_t seed = 0; seed < seeds; ++seed) {
    j.random.seed = static_cast<uint64_t>(seed);
    const std::vector<double> got = with_gradient(j.through(x, false), dy[0], dy[1]);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += got[i];
  }
  // An element between two codes has the variance of one toss of a coin.
  std::vector<double> variances;
  for (int64_t row = 0; row < 2; ++row) {
    double most = 0;
    for (int64_t c = 0; c < 128; ++c) most = std::max(most, std::abs(x[row * 128 + c]));
    for (int64_t c = 0; c < 128; ++c) {
      const double scale = most / 127, v = x[row * 128 + c] / scale, up = v - std::floor(v);
      variances.push_back(scale * scale * up * (1 - up));
    }
  }
  variances = with_gradient(variances, dy[0] * dy[0], dy[1] * dy[1]);
  const std::vector<double> exact = with_gradient(doubles(x), dy[0], dy[1]);
  double worst = 0;
  for (size_t i = 0; i < sums.size(); ++i)
    worst = std::max(worst,
                     (std::abs(sums[i] / seeds - exact[i]) - 1e-9) / std::sqrt(variances[i] / seeds + 1e-18));
  INFO("worst of " << sums.size() << " means: " << worst << " sigma");
  CHECK(worst < 4);
  CHECK(worst > 1);  // rounding is not exact
}

TEST_CASE("codes of groups that are zero, tiny, infinite or not a number") {
  const RowRandomJob j(2, 1, 256);
  for (bool fp8 : {false, true})
    for (int isa = 0; isa < RowRandomJob::isas(); ++isa) {
      INFO("fp8 " << fp8 << " isa " << isa);
      Guarded<float> x(j.elements());
      for (int64_t i = 0; i < x.size(); ++i) x[i] = 0;
      for (double v : j.through(x, fp8, isa)) CHECK((v == 0 && !std::signbit(v)));
      for (int64_t i = 0; i < x.size(); ++i) x[i] = std::numeric_limits<float>::denorm_min();
      for (double v : j.through(x, fp8, isa)) CHECK(std::abs(v) < 1e-40);
      for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        for (int64_t i = 0; i < x.size(); ++i) x[i] = 1;
        x[130] = bad;
        const std::vector<double> got = j.through(x, fp8, isa);
        int64_t finite = 0, exact = 0;
        for (int64_t i = 0; i < x.size(); ++i) {
          const double v = got[static_cast<size_t>(i)];
          if (i >= 128 && i < 256)
            finite += std::isfinite(v);
          else
            exact += v == 1;
        }
        CHECK(finite == 0);
        CHECK(exact == x.size() - 128);
      }
    }
}
