// Numbers of profiles, each with where it is from.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ltrain {

/// measured: on the machine; published: in the document that is named; assumed: by whoever wrote the file.
enum class FigureSource : uint8_t { measured, published, assumed };
inline constexpr int kFigureSourceCount = 3;
const char* figure_source_name(FigureSource source);

struct Figure {
  double value = 0;
  FigureSource source = FigureSource::assumed;
  std::string reference;  ///< the document, or why it is assumed
  bool given = false;     ///< false: the profile does not have it
};

/// y by x, both above zero, x ascending.
struct Curve {
  std::vector<std::pair<double, double>> points;
  FigureSource source = FigureSource::assumed;
  std::string reference;
  bool given() const { return !points.empty(); }
  /// Interpolated between points on logarithmic axes; of the nearest point outside of them.
  double at(double x) const;
};

}  // namespace ltrain
