// Frame of a drawing over steps.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/svg.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/telemetry/run_report.h"

namespace ltrain {

/// The frame of a drawing over steps: maps steps and values to pixels, and draws the axes.
class StepFrame {
 public:
  static constexpr double kLeft = 80, kTop = 30, kWidth = 860;

  StepFrame(const std::vector<RunReport>& runs, double height) : height_(height) {
    for (const RunReport& r : runs)
      first_ = std::min(first_, r.first_step), last_ = std::max(last_, r.last_step);
    if (last_ <= first_) last_ = first_ + 1;
  }
  void see(double v) {
    if (std::isfinite(v)) least_ = std::min(least_, v), most_ = std::max(most_, v);
  }
  /// Call after see(). Returns false if no value was seen.
  bool make_range() {
    if (!(least_ <= most_)) return false;
    if (most_ - least_ < 1e-12) most_ += 0.5, least_ -= 0.5;
    return true;
  }
  double x(double step) const {
    return kLeft + kWidth * (step - static_cast<double>(first_)) / static_cast<double>(last_ - first_);
  }
  double y(double v) const { return kTop + height_ * (most_ - v) / (most_ - least_); }
  double bottom() const { return kTop + height_; }
  int64_t first() const { return first_; }

  void draw_axes(Svg& svg, bool values) const {
    svg.box({kLeft, kTop, kWidth, height_}, "#fafafa");
    for (int i = 0; i <= 4; ++i) {
      if (values) {
        const double v = least_ + (most_ - least_) * i / 4;
        svg.line({kLeft, y(v), kLeft + kWidth, y(v)}, "#dddddd");
        svg.text(kLeft - 8, y(v) + 4, v >= 1e4 ? format_count(v) : fmt::format("{:.3g}", v), "end");
      }
      const int64_t step = first_ + (last_ - first_) * i / 4;
      svg.text(x(static_cast<double>(step)), bottom() + 18, fmt::format("{}", step), "middle");
    }
  }

 private:
  double height_, least_ = INFINITY, most_ = -INFINITY;
  int64_t first_ = INT64_MAX, last_ = 0;
};

}  // namespace ltrain
