#include <algorithm>

#include "kernels/base/error.h"
#include "parallel/pipeline/draw.h"

namespace ltrain::pipeline {
namespace {

constexpr double kRow = 26, kGap = 6, kLeft = 70, kTop = 46, kDigit = 7;

std::string escaped(const std::string& text) {
  std::string s;
  for (char c : text) {
    if (c == '<')
      s += "&lt;";
    else if (c == '>')
      s += "&gt;";
    else if (c == '&')
      s += "&amp;";
    else if (c == '"')
      s += "&quot;";
    else
      s += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return s;
}

/// Light to dark, so that they differ in print too; the letter says which it is.
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

std::string text_at(double x, double y, const std::string& text, const char* anchor = "start") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(text));
}

}  // namespace

std::string draw_svg(const Schedule& s, const Timing& t, const std::string& costs) {
  double shortest = t.makespan;
  for (int r = 0; r < s.ranks; ++r)
    for (size_t i = 0; i < s.order[r].size(); ++i)
      if (const double took = t.end[r][i] - t.start[r][i]; took > 0) shortest = std::min(shortest, took);
  // The shortest action holds its label, within what viewers can show.
  const double wanted = t.makespan > 0 ? t.makespan / shortest * 5 * kDigit : 0;
  const double drawn = std::clamp(wanted, 600.0, 30000.0), scale = t.makespan > 0 ? drawn / t.makespan : 0;
  const double bottom = kTop + s.ranks * (kRow + kGap);

  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" "
      "font-family=\"monospace\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#ffffff\"/>\n",
      kLeft + drawn + 20, bottom + 64 + 16.0 * s.ranks);
  out += text_at(8, 18,
                 fmt::format("{}: {} ranks, {} chunks a rank, {} micro-batches; {}; bubble {:.1f} %", s.name,
                             s.ranks, s.chunks, s.micros, costs, 100 * t.bubble_share));
  double x = 8;
  for (ActionKind k :
       {ActionKind::forward, ActionKind::backward, ActionKind::backward_input, ActionKind::backward_weight}) {
    const char* const names[] = {"F forward", "B backward", "I of the input", "W of the weights"};
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"26\" width=\"12\" height=\"12\" fill=\"{}\" stroke=\"#555\"/>\n", x, fill(k));
    out += text_at(x + 16, 36, names[static_cast<int>(k)]);
    x += 150;
  }
  for (int r = 0; r < s.ranks; ++r) {
    const double y = kTop + r * (kRow + kGap);
    out += text_at(8, y + 17, fmt::format("rank {}", r));
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"#f4f4f4\"/>\n",
                       kLeft, y, drawn, kRow);
    for (size_t i = 0; i < s.order[r].size(); ++i) {
      const Action& a = s.order[r][i];
      const double left = kLeft + t.start[r][i] * scale, wide = (t.end[r][i] - t.start[r][i]) * scale;
      if (wide <= 0) continue;
      // Later chunks have a thicker frame.
      out += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"#555\" "
          "stroke-width=\"{}\"><title>{}: {:.6g} to {:.6g}</title></rect>\n",
          left, y, wide, kRow, fill(a.kind), s.chunk_of(a.stage) > 0 ? "1.8" : "0.6", to_string(a),
          t.start[r][i], t.end[r][i]);
      const std::string text = s.chunks > 1 ? to_string(a) : fmt::format("{}{}", letter(a.kind), a.micro);
      if (wide >= static_cast<double>(text.size()) * kDigit + 2)
        out += text_at(left + wide / 2, y + 17, text, "middle");
    }
  }
  out += text_at(kLeft, bottom + 12, "0") +
         text_at(kLeft + drawn, bottom + 12, fmt::format("{:.4g}", t.makespan), "end");
  double y = bottom + 34;
  for (int r = 0; r < s.ranks; ++r, y += 16)
    out += text_at(
        8, y,
        fmt::format("rank {}: idle {:.4g}, {:.4g} of it between its own actions; at most {} activations", r,
                    t.bubble[r], t.inner_bubble[r], t.peak_activations[r]));
  return out + "</svg>\n";
}

}  // namespace ltrain::pipeline
