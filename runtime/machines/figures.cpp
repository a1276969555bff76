#include "runtime/machines/figures.h"

#include <cmath>

namespace ltrain {

const char* figure_source_name(FigureSource source) {
  constexpr const char* names[kFigureSourceCount] = {"measured", "published", "assumed"};
  return names[static_cast<int>(source)];
}

double Curve::at(double x) const {
  if (points.empty()) return 0;
  if (x <= points.front().first) return points.front().second;
  for (size_t i = 1; i < points.size(); ++i) {
    const auto& [x0, y0] = points[i - 1];
    const auto& [x1, y1] = points[i];
    if (x > x1) continue;
    const double t = std::log(x / x0) / std::log(x1 / x0);
    return std::exp((1 - t) * std::log(y0) + t * std::log(y1));
  }
  return points.back().second;
}

}  // namespace ltrain
