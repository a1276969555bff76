#include "planner/report/expert_pictures.h"

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <numeric>

#include "base/heat_colour.h"
#include "base/svg.h"
#include "planner/report/step_frame.h"

namespace ltrain {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// A drawing with a row for each layer or expert, and a box for each stretch of steps with a value.
struct HeatMap {
  const char* title;
  const char* row;       ///< name of a row: "layer"
  const char* quantity;  ///< name of the value in tooltips, and of its attribute
  size_t rows = 0;
  std::function<double(const ReportStretch&, size_t row)> value;      ///< NaN: no box
  std::function<double(double)> heat;                                 ///< 0 to 1 of a value
  std::function<std::string(const ReportStretch&, size_t row)> more;  ///< end of a tooltip; null: none
  std::vector<std::pair<double, std::string>> legend;                 ///< values and their meaning
};

std::string colour(const HeatMap& map, double value) {
  const auto [red, green, blue] = heat_colour(map.heat(value));
  return fmt::format("#{:02x}{:02x}{:02x}", red, green, blue);
}

std::string map_svg(const RunReport& run, const HeatMap& map) {
  constexpr double kRow = 16;
  StepFrame frame({run}, kRow * static_cast<double>(map.rows));
  Svg svg(map.title);
  frame.see(0), frame.see(1);
  if (!frame.make_range() || map.rows == 0) return svg.document(200, 20);
  frame.draw_axes(svg, false);
  for (size_t row = 0; row < map.rows; ++row) {
    const double top = StepFrame::kTop + kRow * static_cast<double>(row);
    svg.text(StepFrame::kLeft - 8, top + 12, fmt::format("{} {}", map.row, row), "end");
    for (const ReportStretch& s : run.stretches) {
      const double value = map.value(s, row);
      if (std::isnan(value)) continue;
      const double left = frame.x(static_cast<double>(std::max(s.first_step - 1, frame.first()))),
                   right = frame.x(static_cast<double>(s.last_step));
      svg.box({left, top, std::max(1.0, right - left), kRow - 1}, colour(map, value).c_str(),
              fmt::format("{} {}, steps {} to {}: {} {:.3f}{}", map.row, row, s.first_step, s.last_step,
                          map.quantity, value, map.more ? map.more(s, row) : ""),
              0, fmt::format(" data-{}=\"{}\" data-{}=\"{}\"", map.row, row, map.quantity, value));
    }
  }
  const double below = frame.bottom() + 40;
  double left = StepFrame::kLeft;
  for (const auto& [value, text] : map.legend) {
    svg.legend(left, below, colour(map, value).c_str(), text);
    left += 60 + Svg::text_width(text.size());
  }
  return svg.document(StepFrame::kLeft + StepFrame::kWidth + 30, below + 14);
}

size_t layers_of(const RunReport& run) {
  return run.stretches.empty() ? 0 : run.stretches.back().layers.size();
}

using LayerMean = ReportStretch::Mean ReportStretch::Layer::*;

double layer_value(const ReportStretch& s, size_t layer, LayerMean member) {
  if (layer >= s.layers.size()) return kNone;
  const ReportStretch::Mean& m = s.layers[layer].*member;
  return m.known() && std::isfinite(m.value()) ? m.value() : kNone;
}

/// Shares of choices by layer, 0 to 1.
std::string share_map(const RunReport& run, const char* title, const char* quantity, LayerMean member) {
  return map_svg(
      run, {.title = title,
            .row = "layer",
            .quantity = quantity,
            .rows = layers_of(run),
            .value = [member](const ReportStretch& s, size_t row) { return layer_value(s, row, member); },
            .heat = [](double share) { return share; },
            .more = nullptr,
            .legend = {{0, "none"}, {0.25, "25 % of choices"}, {1, "all"}}});
}

bool any(const RunReport& run, LayerMean member, bool above_zero) {
  for (const ReportStretch& s : run.stretches)
    for (size_t layer = 0; layer < s.layers.size(); ++layer)
      if (const double v = layer_value(s, layer, member); above_zero ? v > 0 : !std::isnan(v)) return true;
  return false;
}

/// The layer with experts whose load is least even.
size_t least_even(const ReportStretch& s) {
  size_t least = 0;
  double evenness = 2;
  for (size_t layer = 0; layer < s.layers.size(); ++layer)
    if (const double v = layer_value(s, layer, &ReportStretch::Layer::entropy); v < evenness)
      evenness = v, least = layer;
  return least;
}

}  // namespace

std::string expert_map_svg(const RunReport& run) {
  const auto drops = [](const ReportStretch& s, size_t row) {
    const double v = layer_value(s, row, &ReportStretch::Layer::drop_rate);
    return std::isnan(v) ? "" : fmt::format(", drops {:.2f} %", 100 * v);
  };
  return map_svg(run,
                 {.title = "evenness of the load of experts by layer and step",
                  .row = "layer",
                  .quantity = "evenness",
                  .rows = layers_of(run),
                  .value = [](const ReportStretch& s,
                              size_t row) { return layer_value(s, row, &ReportStretch::Layer::entropy); },
                  .heat = [](double evenness) { return 1 - evenness; },
                  .more = drops,
                  .legend = {{1, "even"}, {0.75, "evenness 0.75"}, {0, "one expert has all"}}});
}

std::string drop_map_svg(const RunReport& run) {
  return share_map(run, "choices beyond the capacity by layer and step", "drops",
                   &ReportStretch::Layer::drop_rate);
}

std::string churn_map_svg(const RunReport& run) {
  return share_map(run, "choices of routing probes that changed by layer and step", "churn",
                   &ReportStretch::Layer::churn);
}

std::string load_map_svg(const RunReport& run, size_t layer) {
  const size_t experts = layer < layers_of(run) ? run.stretches.back().layers[layer].tokens.size() : 0;
  const std::string title = fmt::format("share of choices by expert of layer {} and step", layer);
  return map_svg(run, {.title = title.c_str(),
                       .row = "expert",
                       .quantity = "share",
                       .rows = experts,
                       .value =
                           [layer](const ReportStretch& s, size_t row) {
                             const std::vector<double>& tokens = s.layers[layer].tokens;
                             const double all = std::accumulate(tokens.begin(), tokens.end(), 0.0);
                             return all > 0 ? tokens[row] / all : kNone;
                           },
                       .heat = [](double share) { return share; },
                       .more = nullptr,
                       .legend = {{0, "none"},
                                  {1 / static_cast<double>(std::max<size_t>(1, experts)), "an even share"},
                                  {1, "all choices"}}});
}

std::vector<Picture> expert_pictures(const RunReport& run, int64_t layer) {
  std::vector<Picture> out;
  if (run.experts() == 0) return out;
  using Layer = ReportStretch::Layer;
  const size_t shown = layer >= 0 ? static_cast<size_t>(layer) : least_even(run.whole());
  out.push_back({"experts", "Evenness of the load of experts, by layer and step", expert_map_svg(run)});
  if (shown < layers_of(run) && !run.stretches.back().layers[shown].tokens.empty())
    out.push_back({"load",
                   fmt::format("Share of choices of each expert of layer {}{}, by step", shown,
                               layer >= 0 ? "" : ", the least even one"),
                   load_map_svg(run, shown)});
  if (any(run, &Layer::drop_rate, true))
    out.push_back({"drops", "Choices beyond the capacity, by layer and step", drop_map_svg(run)});
  if (any(run, &Layer::churn, false))
    out.push_back({"churn", "Choices of routing probes that changed, by layer and step", churn_map_svg(run)});
  return out;
}

}  // namespace ltrain
