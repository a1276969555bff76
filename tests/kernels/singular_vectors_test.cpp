// Largest singular values and vectors of matrices that are made with known ones.
#include "kernels/matmul/singular_vectors.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// n orthonormal vectors of `size` elements.
std::vector<std::vector<double>> orthonormal(int64_t n, int64_t size, uint64_t seed) {
  std::vector<std::vector<double>> all;
  for (int64_t k = 0; k < n; ++k) {
    const Guarded<double> v = random_array<double>(size, seed + static_cast<uint64_t>(k), 1);
    std::vector<double> x;
    for (int64_t i = 0; i < size; ++i) x.push_back(v[i]);
    for (int pass = 0; pass < 2; ++pass)
      for (const auto& q : all) {
        double dot = 0;
        for (size_t i = 0; i < x.size(); ++i) dot += q[i] * x[i];
        for (size_t i = 0; i < x.size(); ++i) x[i] -= dot * q[i];
      }
    double squares = 0;
    for (const double e : x) squares += e * e;
    for (double& e : x) e /= std::sqrt(squares);
    all.push_back(std::move(x));
  }
  return all;
}

}  // namespace

TEST_CASE("singular vectors are those that a matrix is made of, tall, wide and of lower rank") {
  struct Case {
    int64_t rows, cols, made, rank;
    double step;  // ratio of neighbouring values
  };
  for (const Case& c : {Case{.rows = 40, .cols = 24, .made = 24, .rank = 5, .step = 0.8},
                        Case{.rows = 24, .cols = 40, .made = 24, .rank = 24, .step = 0.7},
                        Case{.rows = 300, .cols = 400, .made = 300, .rank = 6, .step = 0.97},
                        Case{.rows = 64, .cols = 96, .made = 3, .rank = 8, .step = 0.5},
                        Case{.rows = 16, .cols = 16, .made = 0, .rank = 2, .step = 1}}) {
    CAPTURE(c.rows, c.cols, c.made, c.rank);
    const auto left = orthonormal(c.made, c.rows, 3), right = orthonormal(c.made, c.cols, 700);
    std::vector<float> w(static_cast<size_t>(c.rows * c.cols));
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t col = 0; col < c.cols; ++col) {
        double sum = 0;
        for (int64_t k = 0; k < c.made; ++k)
          sum += std::pow(c.step, static_cast<double>(k)) *
                 left[static_cast<size_t>(k)][static_cast<size_t>(r)] *
                 right[static_cast<size_t>(k)][static_cast<size_t>(col)];
        w[static_cast<size_t>(r * c.cols + col)] = static_cast<float>(sum);
      }
    const SingularVectors s = largest_singular_vectors(w.data(), c.rows, c.cols, c.rank);
    REQUIRE(static_cast<int64_t>(s.values.size()) == c.rank);
    CHECK(s.residual < 1e-11);
    for (int64_t k = 0; k < c.rank; ++k) {
      CAPTURE(k);
      const double value = k < c.made ? std::pow(c.step, static_cast<double>(k)) : 0;
      CHECK(std::abs(s.values[static_cast<size_t>(k)] - value) < 2e-6);  // w is rounded to fp32
      if (k >= c.made) continue;
      double u = 0, v = 0;
      for (int64_t i = 0; i < c.rows; ++i)
        u += s.left[static_cast<size_t>(k * c.rows + i)] *
             left[static_cast<size_t>(k)][static_cast<size_t>(i)];
      for (int64_t i = 0; i < c.cols; ++i)
        v += s.right[static_cast<size_t>(k * c.cols + i)] *
             right[static_cast<size_t>(k)][static_cast<size_t>(i)];
      CHECK(std::abs(std::abs(u) - 1) < 1e-6);
      CHECK(std::abs(std::abs(v) - 1) < 1e-6);
      CHECK(u * v > 0);
    }
  }
}
