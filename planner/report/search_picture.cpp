#include <algorithm>
#include <cmath>

#include "base/bytes_text.h"
#include "base/svg.h"
#include "planner/report/pictures.h"

namespace ltrain {
namespace {

constexpr double kPlotLeft = 90, kPlotTop = 40, kPlotWidth = 900, kPlotHeight = 480;

/// Axes of the plot: memory to the right, seconds upwards.
class PlotScale {
 public:
  PlotScale(double shortest, double longest, int64_t most)
      : log_(longest > 2 * shortest),
        low_(shortest * 0.97),
        high_(longest * 1.03),
        most_(static_cast<double>(most)) {}

  double x_of(int64_t bytes) const {
    return kPlotLeft + kPlotWidth * static_cast<double>(bytes) / (1.02 * most_);
  }
  double y_of(double s) const { return kPlotTop + kPlotHeight * (1 - share(s)); }

  void draw(Svg& svg) const {
    svg.box({kPlotLeft, kPlotTop, kPlotWidth, kPlotHeight}, "#fafafa");
    for (int i = 0; i <= 5; ++i) {
      const auto bytes = static_cast<int64_t>(1.02 * most_ * i / 5);
      svg.text(x_of(bytes), kPlotTop + kPlotHeight + 18, bytes_text(bytes), "middle");
      const double s = log_ ? low_ * std::pow(high_ / low_, i / 5.0) : low_ + (high_ - low_) * i / 5;
      svg.line({kPlotLeft - 5, y_of(s), kPlotLeft + kPlotWidth, y_of(s)}, "#dddddd");
      svg.text(kPlotLeft - 8, y_of(s) + 4, fmt::format("{:.3g} s", s), "end");
    }
  }

 private:
  double share(double s) const {
    return log_ ? std::log(s / low_) / std::log(high_ / low_) : (s - low_) / (high_ - low_);
  }

  bool log_;  ///< logarithmic if the slowest takes more than twice as long as the fastest
  double low_, high_, most_;
};

}  // namespace

std::string search_svg(const SearchResult& result, const Recipe& recipe, const SearchLimits& limits) {
  if (result.found.empty()) return Svg("no layout fits").document(200, 20);
  // Seconds per million tokens, because layouts may differ in batch size.
  const FoundLayout& first = result.found.front();
  const double sequence =
      static_cast<double>(first.plan.tokens_per_step) / static_cast<double>(first.layout.global_batch);
  const auto time = [&](const Layout& l, double step) {
    return step / (static_cast<double>(l.global_batch) * sequence) * 1e6;
  };
  double shortest = INFINITY, longest = 0;
  int64_t most = 1;
  for (const TriedLayout& t : result.tried) {
    const double s = time(t.layout, t.step_seconds);
    shortest = std::min(shortest, s), longest = std::max(longest, s);
    most = std::max(most, t.bytes);
  }
  Svg svg(fmt::format("layouts of {} on {} ranks: time against memory", recipe.name, limits.world));
  svg.text(8, 18,
           fmt::format("{} layouts that were tried and fit, of {} that the rules allow: seconds a million "
                       "tokens, by memory of the rank that takes most",
                       result.tried.size(), result.allowed));
  const PlotScale scale{shortest, longest, most};
  scale.draw(svg);
  const auto about = [&](const Layout& l, double step, int64_t bytes) {
    return fmt::format("{}\nstep {:.4g} s, {}", layout_text(l, recipe), step, bytes_text(bytes));
  };
  const char* const attributes = " data-layout=\"tried\"";
  for (const TriedLayout& t : result.tried)
    svg.circle(scale.x_of(t.bytes), scale.y_of(time(t.layout, t.step_seconds)), 3, "#ffffff",
               about(t.layout, t.step_seconds, t.bytes), attributes);
  const FoundLayout* before = nullptr;
  for (const FoundLayout& f : result.pareto) {
    const auto at = [&](const FoundLayout& p) {
      return std::pair(scale.x_of(p.largest().total_bytes),
                       scale.y_of(time(p.layout, p.plan.step_seconds())));
    };
    if (before)
      svg.line({at(*before).first, at(*before).second, at(f).first, at(f).second}, "#3f8f6b", 2, "6,3");
    before = &f;
  }
  for (size_t i = result.found.size(); i-- > 0;) {
    const FoundLayout& f = result.found[i];
    const double x = scale.x_of(f.largest().total_bytes),
                 y = scale.y_of(time(f.layout, f.plan.step_seconds()));
    svg.circle(x, y, 5, "#d9665b", about(f.layout, f.plan.step_seconds(), f.largest().total_bytes),
               fmt::format(" data-layout=\"{}\"", i + 1));
    svg.text(x + 8, y + 4, fmt::format("{}", i + 1));
  }
  double y = kPlotTop + kPlotHeight + 44;
  svg.text(8, y, "red, by number: the fastest; dashed: none that was tried is both faster and smaller");
  for (size_t i = 0; i < result.found.size(); ++i)
    svg.text(8, y += 16, fmt::format("{:>3}: {}", i + 1, layout_text(result.found[i].layout, recipe)));
  return svg.document(kPlotLeft + kPlotWidth + 60, y + 16);
}

}  // namespace ltrain
