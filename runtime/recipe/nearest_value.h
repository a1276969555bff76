// Suggestion of the nearest valid values, for error messages.
#pragma once
#include <cstdint>
#include <string>

namespace ltrain::recipe {

/// "; nearest valid value: 6 or 8": the values nearest to `v` between `low` and `high` for which `good`
/// returns true.
template <class Good>
std::string nearest(int64_t v, int64_t low, int64_t high, Good good) {
  std::string s;
  for (int64_t d = v - 1; d >= low && v - d < 100000; --d)
    if (good(d)) {
      s = std::to_string(d);
      break;
    }
  for (int64_t u = v + 1; u <= high && u - v < 100000; ++u)
    if (good(u)) {
      s += (s.empty() ? "" : " or ") + std::to_string(u);
      break;
    }
  return s.empty() ? "" : "; nearest valid value: " + s;
}

/// Suggests the multiples of `unit` nearest to `v`.
inline std::string nearest_multiple(int64_t v, int64_t unit) {
  const int64_t low = v / unit * unit;
  return low > 0 ? fmt::format("; nearest valid value: {} or {}", low, low + unit)
                 : fmt::format("; nearest valid value: {}", unit);
}

}  // namespace ltrain::recipe
