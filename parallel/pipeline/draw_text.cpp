#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "parallel/pipeline/draw.h"

namespace ltrain::pipeline {
namespace {

/// "F12", or "F12b" where a rank has several chunks.
std::string label_of(const Schedule& s, const Action& a) {
  std::string text = fmt::format("{}{}", letter(a.kind), a.micro);
  if (s.chunks > 1) {
    const int chunk = s.chunk_of(a.stage);
    text += chunk < 26 ? std::string(1, static_cast<char>('a' + chunk)) : fmt::format("/{}", chunk);
  }
  return text;
}

/// Label of the action that begins at `at`, or of both actions of a pair: "F12aB3b".
std::string label(const Schedule& s, const std::vector<Action>& order, size_t at) {
  std::string text;
  for (size_t i = at; i < at + static_cast<size_t>(actions_at(order, at)); ++i) text += label_of(s, order[i]);
  return text;
}

struct Columns {
  int begin, end;
};
Columns columns(double start, double end, double scale) {
  return {static_cast<int>(std::lround(start * scale)), static_cast<int>(std::lround(end * scale))};
}

/// Calls f(length of the label, start, end) for every action or pair.
template <class F>
void each(const Schedule& s, const Timing& t, F f) {
  for (int r = 0; r < s.ranks; ++r)
    for (size_t i = 0; i < s.order[r].size(); ++i)
      if (!ends_pair(s.order[r], i))
        f(static_cast<int>(label(s, s.order[r], i).size()), t.start[r][i], t.end[r][i]);
}

/// Columns for a second at which every label fits; 0 if no scale up to `most` does.
double fitting_scale(const Schedule& s, const Timing& t, double most) {
  double needed = 0;
  each(s, t, [&](int letters, double start, double end) {
    if (end > start) needed = std::max(needed, letters / (end - start));
  });
  // Rounding to columns may shorten a cell by one.
  for (double scale : {needed, 1.25 * needed, 1.5 * needed, 2 * needed}) {
    if (scale > most) break;
    bool fits = true;
    each(s, t, [&](int letters, double start, double end) {
      const Columns c = columns(start, end, scale);
      fits = fits && (end <= start || c.end - c.begin >= letters);
    });
    if (fits) return scale;
  }
  return 0;
}

}  // namespace

std::string draw_text(const Schedule& s, const Timing& t, int width, const std::string& costs) {
  std::string out = fmt::format("{}: {} rank{}, {} chunk{} a rank, {} micro-batch{}; {}\n", s.name, s.ranks,
                                s.ranks == 1 ? "" : "s", s.chunks, s.chunks == 1 ? "" : "s", s.micros,
                                s.micros == 1 ? "" : "es", costs);
  if (t.makespan <= 0) return out + "nothing to draw: no action takes time\n";
  const std::string last = fmt::format("rank {} ", s.ranks - 1);
  const int head = static_cast<int>(last.size()), room = std::max(20, width - head);
  const double most = room / t.makespan;
  double scale = fitting_scale(s, t, most);
  const bool whole = scale > 0;
  if (!whole) scale = most;

  const int total = std::max(1, columns(0, t.makespan, scale).end);
  int64_t unnumbered = 0, unseen = 0;
  for (int r = 0; r < s.ranks; ++r) {
    std::string row(static_cast<size_t>(total), '.');
    for (size_t i = 0; i < s.order[r].size(); ++i) {
      if (ends_pair(s.order[r], i)) continue;
      const Columns c = columns(t.start[r][i], t.end[r][i], scale);
      const int cells = c.end - c.begin;
      if (cells <= 0) {
        unseen += t.end[r][i] > t.start[r][i];
        continue;
      }
      std::string text = label(s, s.order[r], i);
      if (static_cast<int>(text.size()) > cells) text.resize(1), ++unnumbered;
      text.resize(static_cast<size_t>(cells), '-');
      row.replace(static_cast<size_t>(c.begin), static_cast<size_t>(cells), text);
    }
    const std::string name = fmt::format("rank {}", r);
    out += name + std::string(head - name.size(), ' ') + row + '\n';
  }
  const std::string end = fmt::format("{:.4g}", t.makespan);
  out += std::string(head, ' ') + "0" +
         std::string(std::max<size_t>(1, total > static_cast<int>(end.size()) ? total - 1 - end.size() : 1),
                     ' ') +
         end + '\n';
  out += "F forward, B backward, I backward of the input, W of the weights; then the micro-batch";
  if (s.chunks > 1) out += " and the chunk (a: the rank's first)";
  if (s.has_pairs()) out += "; two in one: by turns";
  out += "; . idle\n";
  if (unnumbered + unseen > 0) {
    out += fmt::format("scaled to {} columns: ", width);
    if (unnumbered > 0)
      out += fmt::format("{} action{} without number", unnumbered, unnumbered == 1 ? "" : "s");
    if (unseen > 0) out += fmt::format("{}{} narrower than a column", unnumbered > 0 ? ", " : "", unseen);
    out += "; a wider terminal or --schedule-svg shows all\n";
  }
  return out;
}

std::string rank_table(const Schedule& s, const Timing& t) {
  std::string out =
      fmt::format("bubble {:.1f} % of ranks * time; time {:.4g}", 100 * t.bubble_share, t.makespan);
  if (t.step > t.makespan) out += fmt::format(", {:.4g} with the optimizer", t.step);
  out += fmt::format("\n{:>6}{:>12}{:>12}{:>24}{:>20}\n", "rank", "busy", "idle", "between its own",
                     "peak activations");
  for (int r = 0; r < s.ranks; ++r)
    out += fmt::format("{:>6}{:>12.4g}{:>12.4g}{:>24.4g}{:>20}\n", r, t.busy[r], t.bubble[r],
                       t.inner_bubble[r], t.peak_activations[r]);
  return out +
         fmt::format(
             "an activation is one micro-batch of one chunk (1/{} of the layers), kept until its B or W\n",
             s.stages());
}

}  // namespace ltrain::pipeline
