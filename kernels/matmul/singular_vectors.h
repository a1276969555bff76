// Largest singular values of a matrix, with their vectors, on the host: for adapters that begin with them.
#pragma once
#include <cstdint>
#include <vector>

namespace ltrain {

struct SingularVectors {
  std::vector<double> values;  ///< (rank), descending
  std::vector<double> left;    ///< (rank, rows)
  std::vector<double> right;   ///< (rank, cols); unit vectors, and zeros on one side for a value of 0
  double residual = 0;         ///< largest |W^T W v - value² v|, relative to the largest value²
};

/// The `rank` largest of w (rows, cols), at most the smaller of both. Block Krylov iteration with restarts in
/// fp64 until `residual` is at most 1e-11, or 300 times. A vector is accurate to the residual over the gap to
/// its neighbours' values². The bits do not depend on the number of threads; the sign of a pair is arbitrary.
SingularVectors largest_singular_vectors(const float* w, int64_t rows, int64_t cols, int64_t rank);

}  // namespace ltrain
