#include "kernels/norm/norm_cut.h"

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct CutNormCase {
  NormKind kind;
  int64_t rows, cols;  ///< rows of one rank
  int ranks;
};

template <class T>
std::vector<T> columns(const std::vector<T>& whole, int64_t cols, int64_t rows, int rank, int ranks) {
  std::vector<T> part;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) part.push_back(whole[(r * ranks + rank) * cols + c]);
  return part;
}

/// The whole norm in double, by definition.
struct CutNormReference {
  std::vector<double> y, dx, dweight, dbias;
  template <class T>
  CutNormReference(const CutNormCase& c, const std::vector<T>& x, const std::vector<T>& weight,
                   const std::vector<T>& bias, const std::vector<T>& dy, const std::vector<T>& before) {
    const int64_t C = c.cols * c.ranks;
    const bool layer = c.kind == NormKind::layer;
    y.resize(c.rows * C), dx.resize(c.rows * C), dweight.resize(C), dbias.resize(C);
    for (int64_t r = 0; r < c.rows; ++r) {
      const auto at = [&](const std::vector<T>& v, int64_t i) { return static_cast<double>(v[r * C + i]); };
      double mean = 0, squares = 0, dot = 0, total = 0;
      if (layer)
        for (int64_t i = 0; i < C; ++i) mean += at(x, i) / static_cast<double>(C);
      for (int64_t i = 0; i < C; ++i) squares += (at(x, i) - mean) * (at(x, i) - mean);
      const double rstd = 1 / std::sqrt(squares / static_cast<double>(C) + 1e-5);
      for (int64_t i = 0; i < C; ++i) {
        const double hat = (at(x, i) - mean) * rstd, g = at(dy, i), w = static_cast<double>(weight[i]);
        y[r * C + i] = hat * w + (layer ? static_cast<double>(bias[i]) : 0);
        dot += g * w * hat / static_cast<double>(C);
        total += layer ? g * w / static_cast<double>(C) : 0;
        dweight[i] += g * hat;
        dbias[i] += g;
      }
      for (int64_t i = 0; i < C; ++i) {
        const double hat = (at(x, i) - mean) * rstd, w = static_cast<double>(weight[i]);
        dx[r * C + i] = static_cast<double>(before[r * C + i]) + (at(dy, i) * w - total - hat * dot) * rstd;
      }
    }
  }
};

template <class T>
void check(const CutNormCase& c, double tolerance) {
  using A = compute_t<T>;
  const int64_t each = c.rows * c.cols, n = each * c.ranks, count = norm_moment_count(c.kind);
  const bool layer = c.kind == NormKind::layer;
  const auto values = [](int64_t size, uint64_t seed, double spread) {
    const auto v = random_array<T>(size, seed, spread);
    return std::vector<T>(v.data(), v.data() + size);
  };
  const auto x = values(n, 1, 3), dy = values(n, 2, 1), before = values(n, 3, 1);
  const auto weight = values(c.cols * c.ranks, 4, 2), bias = values(c.cols * c.ranks, 5, 1);
  const CutNormReference want(c, x, weight, bias, dy, before);
  INFO(c.rows << "x" << c.cols << " on " << c.ranks << (layer ? " layer" : " rms"));
  const auto near = [&](double got, double expected) {
    if (!(std::abs(got - expected) <= tolerance * (1 + std::abs(expected)))) CHECK(got == expected);
  };
  const NormShape shape{c.kind, c.rows, c.cols, 1e-5, false, false};
  const auto all_moments = BOTH_ISAS(norm_moments_cpu);
  const auto all_apply = BOTH_ISAS(norm_apply_cpu);
  const auto all_dots = BOTH_ISAS(norm_cut_dots_cpu);
  const auto all_backward = BOTH_ISAS(norm_cut_backward_cpu);
  for (size_t isa = 0; isa < all_apply.size(); ++isa) {
    const auto moments_of = all_moments[isa].second;
    const auto apply = all_apply[isa].second;
    const auto dots_of = all_dots[isa].second;
    const auto backward = all_backward[isa].second;
    const DType t = dtype_of<T>::value;
    std::vector<A> moments(c.ranks * c.rows * count), dots(c.rows * count), mean(c.rows), rstd(c.rows);
    const auto part = [&](const std::vector<T>& v, int rank) {
      return columns(v, c.cols, c.rows, rank, c.ranks);
    };
    const auto slice = [&](const std::vector<T>& v, int rank) {
      return std::vector<T>(v.begin() + rank * c.cols, v.begin() + (rank + 1) * c.cols);
    };
    for (int r = 0; r < c.ranks; ++r)
      moments_of(t, shape, moments.data() + r * c.rows * count, part(x, r).data());
    std::vector<std::vector<A>> dw, db;
    for (int r = 0; r < c.ranks; ++r) {
      Guarded<T> y(each);
      const auto xs = part(x, r), ws = slice(weight, r), bs = slice(bias, r), gs = part(dy, r);
      apply(t, shape, c.ranks, y.data(), mean.data(), rstd.data(), xs.data(), moments.data(), ws.data(),
            layer ? bs.data() : nullptr);
      CHECK(y.intact());
      for (int64_t i = 0; i < each; ++i)
        near(static_cast<double>(y.data()[i]), want.y[(i / c.cols * c.ranks + r) * c.cols + i % c.cols]);
      std::vector<A> own(c.rows * count), w(c.cols, A(1)), b(c.cols, A(1));
      NormShape adds = shape;
      adds.accumulate = true;
      dots_of(t, adds, own.data(), w.data(), layer ? b.data() : nullptr, gs.data(), xs.data(), ws.data(),
              mean.data(), rstd.data());
      for (size_t i = 0; i < own.size(); ++i) dots[i] += own[i];
      for (int64_t i = 0; i < c.cols; ++i) {
        near(static_cast<double>(w[i]) - 1, want.dweight[r * c.cols + i]);
        if (layer) near(static_cast<double>(b[i]) - 1, want.dbias[r * c.cols + i]);
      }
    }
    for (int r = 0; r < c.ranks; ++r) {
      auto dx = part(before, r);
      const auto xs = part(x, r), ws = slice(weight, r), gs = part(dy, r);
      backward(t, shape, c.cols * c.ranks, dx.data(), gs.data(), xs.data(), ws.data(), mean.data(),
               rstd.data(), dots.data());
      for (int64_t i = 0; i < each; ++i)
        near(static_cast<double>(dx[i]), want.dx[(i / c.cols * c.ranks + r) * c.cols + i % c.cols]);
    }
  }
}

}  // namespace

TEST_CASE("a norm of columns that ranks share is that of the whole rows") {
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (const auto& [rows, cols, ranks] :
         {std::tuple<int64_t, int64_t, int>{1, 1, 2}, {3, 7, 2}, {17, 33, 3}, {40, 64, 1}}) {
      check<double>({kind, rows, cols, ranks}, 1e-12);
      check<float>({kind, rows, cols, ranks}, 1e-4);
      check<bf16>({kind, rows, cols, ranks}, 2e-2);
    }
}
