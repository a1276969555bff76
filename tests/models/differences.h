// Largest values and differences.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

namespace ltrain::test {

/// The largest magnitude of `count` values from `from` on.
inline double largest(const std::vector<double>& x, size_t from = 0, size_t count = SIZE_MAX) {
  double most = 0;
  for (size_t i = from; i < x.size() && i - from < count; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}

template <class T>
double largest_difference(const std::vector<T>& a, const std::vector<T>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max<double>(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace ltrain::test
