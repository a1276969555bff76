#include "kernels/norm/norm.h"

#include <array>

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct NormCase {
  NormKind kind;
  int64_t rows, cols;
  bool residual = false;
  double dropout = 0, offset = 0;
};

constexpr double kEps = 1e-5;
constexpr int64_t kNormSeq = 5;

double keep_factor(const NormCase& c, int64_t row, int64_t col) {
  if (c.dropout == 0) return 1;
  const uint64_t calls = static_cast<uint64_t>((c.cols + 3) / 4);
  const uint64_t at =
      (static_cast<uint64_t>(40 + row / kNormSeq) * kNormSeq + row % kNormSeq) * calls * 4 + col;
  return dropout_keep(3, 4, at, dropout_threshold(c.dropout)) ? static_cast<float>(1 / (1 - c.dropout)) : 0;
}

template <class T>
void check_forward(const NormCase& c) {
  using A = compute_t<T>;
  const int64_t n = c.rows * c.cols;
  const auto x = random_array<T>(n, 1, 3), delta = random_array<T>(n, 2),
             weight = random_array<T>(c.cols, 3, 2);
  const auto bias = random_array<T>(c.cols, 4);
  const bool layer = c.kind == NormKind::layer;
  std::vector<int64_t> samples;
  for (int64_t i = 0; i <= c.rows / kNormSeq; ++i) samples.push_back(40 + i);
  DropoutArgs drop;
  if (c.dropout > 0)
    drop = {{3, 4, samples.data(), {kNormSeq, 0, kNormSeq}},
            dropout_threshold(c.dropout),
            static_cast<float>(1 / (1 - c.dropout))};
  for (const auto& [isa, forward] : BOTH_ISAS(norm_forward_cpu)) {
    INFO(isa << " " << c.rows << "x" << c.cols << (layer ? " layer" : " rms")
             << (c.residual ? " residual" : ""));
    std::array<std::string, 4> bits;
    for (int threads : {1, 2})
      with_threads(threads, [&] {
        Guarded<T> y(n), sum(n);
        Guarded<A> mean(c.rows), rstd(c.rows);
        forward(dtype_of<T>::value, {c.kind, c.rows, c.cols, kEps, false, false, c.offset}, y.data(),
                c.residual ? sum.data() : nullptr, layer ? mean.data() : nullptr, rstd.data(), x.data(),
                c.residual ? delta.data() : nullptr, weight.data(), layer ? bias.data() : nullptr, drop);
        for (bool whole : {y.intact(), sum.intact(), mean.intact(), rstd.intact()}) CHECK(whole);
        std::vector<double> want_sum(n), want(n), want_mean(c.rows), want_rstd(c.rows);
        for (int64_t r = 0; r < c.rows; ++r) {
          double m = 0, squares = 0;
          for (int64_t i = 0; i < c.cols; ++i) {
            const int64_t at = r * c.cols + i;
            want_sum[at] = as_double(x[at]) + (c.residual ? as_double(delta[at]) * keep_factor(c, r, i) : 0);
          }
          // The norm is taken of the sum as it was stored.
          const auto v = [&](int64_t i) {
            return c.residual ? as_double(sum[r * c.cols + i]) : as_double(x[r * c.cols + i]);
          };
          if (layer)
            for (int64_t i = 0; i < c.cols; ++i) m += v(i) / static_cast<double>(c.cols);
          for (int64_t i = 0; i < c.cols; ++i) squares += (v(i) - m) * (v(i) - m);
          want_mean[r] = m;
          want_rstd[r] = 1 / std::sqrt(squares / static_cast<double>(c.cols) + kEps);
          for (int64_t i = 0; i < c.cols; ++i)
            want[r * c.cols + i] = (v(i) - m) * want_rstd[r] * (as_double(weight[i]) + c.offset) +
                                   (layer ? as_double(bias[i]) : 0);
        }
        if (c.residual) CHECK(worst_error(sum, want_sum) < tolerance<T>());
        CHECK(worst_error(y, want) < 2 * tolerance<T>());
        CHECK(worst_error(rstd, want_rstd) < (sizeof(A) == 8 ? 1e-12 : 1e-5));
        if (layer) CHECK(worst_error(mean, want_mean) < (sizeof(A) == 8 ? 1e-12 : 1e-4));
        const std::array<std::string, 4> now{y.bits(), sum.bits(), mean.bits(), rstd.bits()};
        CHECK((threads == 1 || now == bits));
        bits = now;
      });
  }
}

template <class T>
void check_backward(const NormCase& c, bool accumulate, bool first) {
  using A = compute_t<T>;
  const int64_t n = c.rows * c.cols;
  const bool layer = c.kind == NormKind::layer;
  const auto x = random_array<T>(n, 1, 3), dy = random_array<T>(n, 2), weight = random_array<T>(c.cols, 3, 2);
  const auto old_dx = random_array<T>(n, 5);
  const auto old_dw = random_array<A>(c.cols, 6), old_db = random_array<A>(c.cols, 7);
  Guarded<A> mean(c.rows), rstd(c.rows);
  std::vector<double> want_dx(n), want_dw(c.cols), want_db(c.cols);
  for (int64_t i = 0; i < c.cols; ++i) {
    want_dw[i] = accumulate ? as_double(old_dw[i]) : 0;
    want_db[i] = accumulate ? as_double(old_db[i]) : 0;
  }
  for (int64_t r = 0; r < c.rows; ++r) {
    const double count = static_cast<double>(c.cols);
    double m = 0, squares = 0, dot = 0, total = 0;
    const auto v = [&](int64_t i) { return as_double(x[r * c.cols + i]); };
    if (layer)
      for (int64_t i = 0; i < c.cols; ++i) m += v(i) / count;
    for (int64_t i = 0; i < c.cols; ++i) squares += (v(i) - m) * (v(i) - m);
    mean[r] = A(m);
    rstd[r] = A(1 / std::sqrt(squares / count + kEps));
    const double s = as_double(rstd[r]);
    m = as_double(mean[r]) * (layer ? 1 : 0);
    for (int64_t i = 0; i < c.cols; ++i) {
      const double hat = (v(i) - m) * s, g = as_double(dy[r * c.cols + i]),
                   dhat = g * (as_double(weight[i]) + c.offset);
      dot += dhat * hat / count;
      total += layer ? dhat / count : 0;
      want_dw[i] += g * hat;
      want_db[i] += g;
    }
    for (int64_t i = 0; i < c.cols; ++i) {
      const double hat = (v(i) - m) * s,
                   dhat = as_double(dy[r * c.cols + i]) * (as_double(weight[i]) + c.offset);
      want_dx[r * c.cols + i] =
          (first ? 0 : as_double(old_dx[r * c.cols + i])) + (dhat - total - hat * dot) * s;
    }
  }
  for (const auto& [isa, backward] : BOTH_ISAS(norm_backward_cpu)) {
    INFO(isa << " " << c.rows << "x" << c.cols << (layer ? " layer" : " rms") << (accumulate ? " +=" : " =")
             << (first ? " first" : ""));
    std::array<std::string, 3> bits;
    for (int threads : {1, 2})
      with_threads(threads, [&] {
        Guarded<T> dx = old_dx;
        Guarded<A> dw = old_dw, db = old_db;
        backward(dtype_of<T>::value, {c.kind, c.rows, c.cols, 0, accumulate, first, c.offset}, dx.data(),
                 dw.data(), layer ? db.data() : nullptr, dy.data(), x.data(), weight.data(),
                 layer ? mean.data() : nullptr, rstd.data());
        for (bool whole : {dx.intact(), dw.intact(), db.intact()}) CHECK(whole);
        CHECK(worst_error(dx, want_dx) < 2 * tolerance<T>());
        CHECK(worst_error(dw, want_dw) < (sizeof(A) == 8 ? 1e-11 : 1e-4));
        if (layer) CHECK(worst_error(db, want_db) < (sizeof(A) == 8 ? 1e-11 : 1e-4));
        const std::array<std::string, 3> now{dx.bits(), dw.bits(), db.bits()};
        CHECK((threads == 1 || now == bits));
        bits = now;
      });
  }
}

}  // namespace

TEST_CASE("norms equal their double reference, forward") {
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (const auto& [rows, cols] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 33}, {10, 8}, {35, 70}, {5, 257}})
      each_float([&, rows = rows, cols = cols]<class T>() {
        check_forward<T>({kind, rows, cols});
        check_forward<T>({kind, rows, cols, true});
        check_forward<T>({kind, rows, cols, true, 0.25});
        check_forward<T>({kind, rows, cols, true, 0, 1});
      });
}

TEST_CASE("norms equal their double reference, backward") {
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (const auto& [rows, cols] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {1, 33}, {17, 8}, {35, 70}})
      each_float([&, rows = rows, cols = cols]<class T>() {
        check_backward<T>({kind, rows, cols}, false, true);
        check_backward<T>({kind, rows, cols}, true, false);
        check_backward<T>({kind, rows, cols, false, 0, 1}, true, false);
      });
}

TEST_CASE("a constant row has a finite norm") {
  Guarded<float> x(16), y(16), weight(16), bias(16), mean(1), rstd(1);
  for (int i = 0; i < 16; ++i) x[i] = 1e4f, weight[i] = 1, bias[i] = 0.5f;
  for (const auto& [isa, forward] : BOTH_ISAS(norm_forward_cpu)) {
    forward(DType::f32, {NormKind::layer, 1, 16, kEps, false, false}, y.data(), nullptr, mean.data(),
            rstd.data(), x.data(), nullptr, weight.data(), bias.data(), {});
    for (int i = 0; i < 16; ++i) CHECK(y[i] == Approx(0.5));
  }
}
