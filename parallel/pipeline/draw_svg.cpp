#include <fmt/format.h>

#include <algorithm>

#include "base/svg.h"
#include "parallel/pipeline/draw.h"

namespace ltrain::pipeline {
namespace {

constexpr double kRow = 26, kGap = 6, kLeft = 70, kTop = 46;

/// Light to dark, so that actions differ in print, too; the letter is the label.
const char* fill(ActionKind k) {
  switch (k) {
    case ActionKind::forward:
      return "#dbe9f9";
    case ActionKind::backward:
      return "#8fc7a0";
    case ActionKind::backward_input:
      return "#b9dfa8";
    case ActionKind::backward_weight:
      return "#e8d8a8";
  }
  return "#ffffff";
}

}  // namespace

std::string draw_svg(const Schedule& s, const Timing& t, const std::string& costs) {
  double shortest = t.makespan;
  for (int r = 0; r < s.ranks; ++r)
    for (size_t i = 0; i < s.order[r].size(); ++i)
      if (const double took = t.end[r][i] - t.start[r][i]; took > 0) shortest = std::min(shortest, took);
  // The shortest action fits its label, within sizes that viewers can show.
  const double wanted = t.makespan > 0 ? t.makespan / shortest * Svg::text_width(5) : 0;
  const double drawn = std::clamp(wanted, 600.0, 30000.0), scale = t.makespan > 0 ? drawn / t.makespan : 0;
  const double bottom = kTop + s.ranks * (kRow + kGap);

  const std::string title =
      fmt::format("{}: {} ranks, {} chunks a rank, {} micro-batches; {}; bubble {:.1f} %", s.name, s.ranks,
                  s.chunks, s.micros, costs, 100 * t.bubble_share);
  Svg svg(title);
  svg.text(8, 18, title);
  double x = 8;
  for (ActionKind k :
       {ActionKind::forward, ActionKind::backward, ActionKind::backward_input, ActionKind::backward_weight}) {
    const char* const names[] = {"F forward", "B backward", "I of the input", "W of the weights"};
    svg.legend(x, 36, fill(k), names[static_cast<int>(k)]);
    x += 150;
  }
  for (int r = 0; r < s.ranks; ++r) {
    const double y = kTop + r * (kRow + kGap);
    svg.text(8, y + 17, fmt::format("rank {}", r));
    svg.box({kLeft, y, drawn, kRow}, "#f4f4f4", {}, 0);
    for (size_t i = 0; i < s.order[r].size(); ++i) {
      const Action& a = s.order[r][i];
      // Each action of a pair has half of the row.
      const bool second = ends_pair(s.order[r], i);
      const double tall = second || a.with_next ? kRow / 2 : kRow, top = second ? y + tall : y;
      const double left = kLeft + t.start[r][i] * scale, wide = (t.end[r][i] - t.start[r][i]) * scale;
      if (wide <= 0) continue;
      // Later chunks have a thicker frame.
      svg.box({left, top, wide, tall}, fill(a.kind),
              fmt::format("{}: {:.6g} to {:.6g}", to_string(a), t.start[r][i], t.end[r][i]),
              s.chunk_of(a.stage) > 0 ? 1.8 : 0.6);
      const std::string text = s.chunks > 1 ? to_string(a) : fmt::format("{}{}", letter(a.kind), a.micro);
      if (wide >= Svg::text_width(text.size()) + 2)
        svg.text(left + wide / 2, top + tall / 2 + 4, text, "middle");
    }
  }
  svg.text(kLeft, bottom + 12, "0");
  svg.text(kLeft + drawn, bottom + 12, fmt::format("{:.4g}", t.makespan), "end");
  double y = bottom + 34;
  for (int r = 0; r < s.ranks; ++r, y += 16)
    svg.text(8, y,
             fmt::format("rank {}: idle {:.4g}, {:.4g} of it between its own actions; at most {} activations",
                         r, t.bubble[r], t.inner_bubble[r], t.peak_activations[r]));
  return svg.document(kLeft + drawn + 20, bottom + 64 + 16.0 * s.ranks);
}

}  // namespace ltrain::pipeline
