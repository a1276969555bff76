#include "kernels/optimizer/adafactor.h"

#include <algorithm>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

/// Calls f(row of the matrix, first column, first element of the part, number of elements) for every row of
/// the part, or for its rows [from, to).
template <class F>
void each_row(const MatrixPart& p, int64_t from, int64_t to, F f) {
  const int64_t first = p.begin / p.cols;
  for (int64_t r = first + from; r < first + to; ++r) {
    const int64_t begin = std::max(p.begin, r * p.cols), end = std::min(p.begin + p.count, (r + 1) * p.cols);
    if (begin < end) f(p.first_row + r, p.first_col + begin - r * p.cols, begin - p.begin, end - begin);
  }
}
int64_t rows_of(const MatrixPart& p) {
  return p.count == 0 ? 0 : (p.begin + p.count - 1) / p.cols - p.begin / p.cols + 1;
}

template <class A>
void sums_of(double* sums, const A* g, const MatrixPart& p, int64_t rows, double scale) {
  const int64_t n = rows_of(p);
  parallel_for(n, std::max<int64_t>(1, 16384 / p.cols), [=](int64_t from, int64_t to) {
    each_row(p, from, to, [&](int64_t row, int64_t, int64_t at, int64_t count) {
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < count; ++i) {
        const double v = scale * g[at + i];
        sum += v * v;
      }
      sums[row] += sum;
    });
  });
  // Each thread has its own columns, so that rows are summed in the same order for any number of threads.
  parallel_for(p.cols, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, n)), [=](int64_t from, int64_t to) {
    double* columns = sums + rows;
    each_row(p, 0, n, [&](int64_t, int64_t col, int64_t at, int64_t count) {
      const int64_t begin = std::max(col, p.first_col + from), end = std::min(col + count, p.first_col + to);
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) {
        const double v = scale * g[at + c - col];
        columns[c] += v * v;
      }
    });
  });
}

template <class A>
void moments(A* factors, const double* sums, int64_t rows, int64_t cols, double beta) {
  double mean = 0;
  for (int64_t i = 0; i < rows + cols; ++i) {
    const double now = sums[i] / static_cast<double>(i < rows ? cols : rows);
    factors[i] = static_cast<A>(beta * factors[i] + (1 - beta) * now);
    if (i < rows) mean += factors[i];
  }
  factors[rows + cols] = static_cast<A>(mean / static_cast<double>(rows));
}

template <class A>
void direction(A* g, const A* factors, const MatrixPart& p, int64_t rows, int64_t count, double scale,
               double eps) {
  const A least = A(eps * eps), s = A(scale), mean = std::max(factors[count - 1], A(eps));
  parallel_for(rows_of(p), std::max<int64_t>(1, 16384 / p.cols), [=](int64_t from, int64_t to) {
    each_row(p, from, to, [&](int64_t row, int64_t col, int64_t at, int64_t n) {
      const A of_row = factors[row] / mean;
      const A* columns = factors + rows + col;
      A* to_g = g + at;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const A v = of_row * columns[i];
        to_g[i] = s * to_g[i] / std::sqrt(v > least ? v : least);
      }
    });
  });
}

template <class A>
void plain(A* g, A* v, int64_t n, double beta, double scale, double eps) {
  const A b = A(beta), c = A(1 - beta), s = A(scale), least = A(eps * eps);
  parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
    A* __restrict gp = g, * __restrict vp = v;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const A grad = s * gp[i];
      vp[i] = b * vp[i] + c * grad * grad;
      gp[i] = grad / std::sqrt(vp[i] > least ? vp[i] : least);
    }
  });
}

}  // namespace

void factor_sums_cpu(DType t, double* sums, const void* grad, MatrixPart part, int64_t rows, double scale) {
  if (t == DType::f64)
    sums_of(sums, static_cast<const double*>(grad), part, rows, scale);
  else
    sums_of(sums, static_cast<const float*>(grad), part, rows, scale);
}

void factor_moments_cpu(DType t, void* factors, const double* sums, int64_t rows, int64_t cols, double beta) {
  if (t == DType::f64)
    moments(static_cast<double*>(factors), sums, rows, cols, beta);
  else
    moments(static_cast<float*>(factors), sums, rows, cols, beta);
}

void factor_direction_cpu(DType t, void* grad, const void* factors, MatrixPart part, int64_t rows,
                          int64_t factor_count, double scale, double eps) {
  if (t == DType::f64)
    direction(static_cast<double*>(grad), static_cast<const double*>(factors), part, rows, factor_count,
              scale, eps);
  else
    direction(static_cast<float*>(grad), static_cast<const float*>(factors), part, rows, factor_count, scale,
              eps);
}

void plain_direction_cpu(DType t, void* grad, void* v, int64_t n, double beta, double scale, double eps) {
  if (t == DType::f64)
    plain(static_cast<double*>(grad), static_cast<double*>(v), n, beta, scale, eps);
  else
    plain(static_cast<float*>(grad), static_cast<float*>(v), n, beta, scale, eps);
}

}  // namespace ltrain::LT_ISA
