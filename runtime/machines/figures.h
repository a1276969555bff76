// Figures of profiles, each with its source.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ltrain {

/// measured: on the machine. published: in the named document. assumed: by the author of the file.
enum class FigureSource : uint8_t { measured, published, assumed };
inline constexpr int kFigureSourceCount = 3;
const char* figure_source_name(FigureSource source);

struct Figure {
  double value = 0;
  FigureSource source = FigureSource::assumed;
  std::string reference;  ///< the document, or the reason for an assumption
  bool given = false;     ///< false: the profile does not have it
};

/// Points (x, y), both above zero, with ascending x.
struct Curve {
  std::vector<std::pair<double, double>> points;
  FigureSource source = FigureSource::assumed;
  std::string reference;
  bool given() const { return !points.empty(); }
  /// Value at x, interpolated on logarithmic axes. Outside the points, the value of the nearest one.
  double at(double x) const;
};

}  // namespace ltrain
