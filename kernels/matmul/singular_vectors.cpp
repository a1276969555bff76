#include "kernels/matmul/singular_vectors.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "kernels/matmul/matmul.h"
#include "kernels/tensor/rng.h"

namespace ltrain {
namespace {

constexpr double kResidual = 1e-11;
constexpr int kRestarts = 300;

/// Vectors of one size, as rows.
struct Vectors {
  int64_t size = 0;
  std::vector<double> values = {};

  int64_t count() const { return static_cast<int64_t>(values.size()) / size; }
  double* row(int64_t i) { return values.data() + i * size; }
  const double* row(int64_t i) const { return values.data() + i * size; }
  Tensor tensor(int64_t first, int64_t n) const {
    Tensor t;
    t.data = const_cast<double*>(row(first));
    t.dtype = DType::f64;
    t.shape = {n, size};
    return t;
  }
  Tensor tensor() const { return tensor(0, count()); }
};

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// a += factor b
void add(double* a, double factor, const double* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] += factor * b[i];
}

/// out = a op(b)
void multiply(const Tensor& out, const Tensor& a, const Tensor& b, bool transposed) {
  const auto cpu = make_inline_stream("singular vectors");
  MatmulArgs args;
  args.trans_b = transposed;
  matmul(*cpu, out, a, b, args);
}

Vectors product(const Vectors& a, const Vectors& b, bool transposed) {
  Vectors out{.size = transposed ? b.count() : b.size};
  out.values.resize(static_cast<size_t>(a.count() * out.size));
  multiply(out.tensor(), a.tensor(), b.tensor(), transposed);
  return out;
}

/// Appends to `images` the products of the Gram matrix of the smaller side, W^T W or W W^T, with rows of
/// `basis` from the first that has none.
void add_images(const Vectors& w, const Vectors& basis, Vectors& images) {
  const bool wide = w.size > w.count();
  const int64_t first = images.count(), n = basis.count() - first;
  Vectors other{.size = wide ? w.size : w.count()};
  other.values.resize(static_cast<size_t>(n * other.size));
  multiply(other.tensor(), basis.tensor(first, n), w.tensor(), !wide);
  images.values.resize(basis.values.size());
  multiply(images.tensor(first, n), other.tensor(), w.tensor(), wide);
}

/// Appends the part of v that is orthogonal to the basis, scaled to length 1. Appends nothing if that part is
/// within rounding.
void extend(Vectors& basis, const double* from) {
  const int64_t n = basis.size;
  std::vector<double> v(from, from + n);
  const double before = std::sqrt(dot(v.data(), v.data(), n));
  for (int pass = 0; pass < 2; ++pass)
    for (int64_t i = 0; i < basis.count(); ++i)
      add(v.data(), -dot(basis.row(i), v.data(), n), basis.row(i), n);
  const double length = std::sqrt(dot(v.data(), v.data(), n));
  if (!(length > 1e-10 * before)) return;
  for (double& e : v) e /= length;
  basis.values.insert(basis.values.end(), v.begin(), v.end());
}

/// Jacobi's rotations: the diagonal of the symmetric `a` becomes its eigenvalues. Returns the eigenvectors.
Vectors eigenvectors(Vectors& a) {
  const int64_t n = a.size;
  Vectors turns{.size = n, .values = std::vector<double>(static_cast<size_t>(n * n))};
  for (int64_t i = 0; i < n; ++i) turns.row(i)[i] = 1;
  for (int sweep = 0; sweep < 40; ++sweep) {
    double off = 0, all = 0;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) (i == j ? all : off) += a.row(i)[j] * a.row(i)[j];
    if (off <= 1e-30 * all) break;
    for (int64_t p = 0; p < n; ++p)
      for (int64_t q = p + 1; q < n; ++q) {
        const double apq = a.row(p)[q];
        if (apq == 0) continue;
        const double theta = (a.row(q)[q] - a.row(p)[p]) / (2 * apq);
        const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        const auto rotate = [c, s](double& x, double& y) {
          const double u = x;
          x = c * u - s * y;
          y = s * u + c * y;
        };
        for (int64_t k = 0; k < n; ++k) rotate(a.row(k)[p], a.row(k)[q]);
        for (int64_t k = 0; k < n; ++k) rotate(a.row(p)[k], a.row(q)[k]);
        for (int64_t k = 0; k < n; ++k) rotate(turns.row(p)[k], turns.row(q)[k]);
      }
  }
  return turns;
}

/// Eigenvectors of the Gram matrix by descending value, and the residual of the first `rank`.
struct Ritz {
  Vectors vectors;
  double residual = 0;
};

/// Rayleigh-Ritz over the Krylov space of `start` with up to `most` dims; returns `keep` vectors.
Ritz ritz_of(const Vectors& w, const Vectors& start, int64_t most, int64_t keep, int64_t rank) {
  const int64_t size = start.size;
  Vectors basis{.size = size}, images{.size = size};
  for (int64_t i = 0; i < start.count(); ++i) extend(basis, start.row(i));
  while (images.count() < basis.count()) {
    const int64_t first = images.count();
    add_images(w, basis, images);
    for (int64_t i = first; i < images.count() && basis.count() < most; ++i) extend(basis, images.row(i));
  }
  Vectors small = product(basis, images, true);
  const Vectors turns = eigenvectors(small);
  std::vector<int64_t> order(static_cast<size_t>(basis.count()));
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int64_t i) { return small.row(i)[i]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return value(a) > value(b); });
  order.resize(static_cast<size_t>(std::min(keep, basis.count())));
  Vectors chosen{.size = basis.count()};
  for (const int64_t i : order)
    chosen.values.insert(chosen.values.end(), turns.row(i), turns.row(i) + chosen.size);
  Ritz out{.vectors = product(chosen, basis, false)};
  Vectors apart = product(chosen, images, false);
  const double largest = value(order[0]);
  for (int64_t i = 0; i < rank && largest > 0; ++i) {
    add(apart.row(i), -value(order[static_cast<size_t>(i)]), out.vectors.row(i), size);
    out.residual = std::max(out.residual, std::sqrt(dot(apart.row(i), apart.row(i), size)) / largest);
  }
  return out;
}

}  // namespace

SingularVectors largest_singular_vectors(const float* values, int64_t rows, int64_t cols, int64_t rank) {
  const int64_t side = std::min(rows, cols);
  LT_CHECK(rank >= 1 && rank <= side, "expected 1 to {} singular values of ({}, {}), got {}", side, rows,
           cols, rank);
  const Vectors w{.size = cols, .values = std::vector<double>(values, values + rows * cols)};
  const int64_t keep = std::min(side, rank + 8), most = std::min(side, std::max<int64_t>(128, 4 * keep));
  Ritz ritz{.vectors = {.size = side}};
  for (int64_t i = 0; i < keep * side; ++i)  // pseudo-random start vectors
    ritz.vectors.values.push_back(
        static_cast<double>(philox(1, 0, static_cast<uint64_t>(i)).v[0]) / 4294967296.0 - 0.5);
  for (int i = 0; i < kRestarts; ++i) {
    ritz = ritz_of(w, ritz.vectors, most, keep, rank);
    if (ritz.residual <= kResidual || most == side) break;
  }
  ritz.vectors.values.resize(static_cast<size_t>(rank * side));
  const bool wide = cols > rows;
  Vectors others = product(ritz.vectors, w, !wide);
  SingularVectors out;
  out.residual = ritz.residual;
  for (int64_t k = 0; k < rank; ++k) {
    const double value = std::sqrt(dot(others.row(k), others.row(k), others.size));
    out.values.push_back(value);
    for (int64_t i = 0; i < others.size; ++i) others.row(k)[i] = value > 0 ? others.row(k)[i] / value : 0;
  }
  out.left = wide ? std::move(ritz.vectors.values) : std::move(others.values);
  out.right = wide ? std::move(others.values) : std::move(ritz.vectors.values);
  return out;
}

}  // namespace ltrain
