// Values of tensors after the steps of an optimizer, compared with a reference.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace ltrain::test {

inline constexpr int kSteps = 20;

using Values = std::vector<double>;
using NamedValues = std::map<std::string, Values>;

/// The largest difference.
inline double worst(const NamedValues& a, const NamedValues& b) {
  double most = 0;
  REQUIRE(a.size() == b.size());
  for (const auto& [name, x] : a) {
    REQUIRE(x.size() == b.at(name).size());
    for (size_t i = 0; i < x.size(); ++i) most = std::max(most, std::abs(x[i] - b.at(name)[i]));
  }
  return most;
}

}  // namespace ltrain::test
