// Colours of heat maps.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace ltrain {

/// Red, green and blue of a value, from light grey (0) to red (1). Its root is taken, so that small values
/// differ; NaN is white.
inline std::array<uint8_t, 3> heat_colour(double value) {
  if (std::isnan(value)) return {0xff, 0xff, 0xff};
  const double heat = std::sqrt(std::clamp(value, 0.0, 1.0));
  const auto part = [&](int from, int to) { return static_cast<uint8_t>(from + (to - from) * heat); };
  return {part(0xf2, 0xb0), part(0xf2, 0x10), part(0xf2, 0x10)};
}

}  // namespace ltrain
