#include "planner/report/run_pictures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/printable.h"
#include "base/svg.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain {
namespace {

using Mean = ReportStretch::Mean;

constexpr std::array<const char*, 8> kColours{"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                              "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};

bool drawn(const Mean& m) { return m.known() && std::isfinite(m.value()); }

/// The frame of a drawing over steps: maps steps and values to pixels, and draws the axes.
class Frame {
 public:
  static constexpr double kLeft = 80, kTop = 30, kWidth = 860;

  Frame(const std::vector<RunReport>& runs, double height) : height_(height) {
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

/// Draws the line of a run, and the points of its held-out losses.
void draw_line(Svg& svg, const Frame& frame, const RunReport& run, const RunCurve& curve,
               const char* colour) {
  const ReportStretch* before = nullptr;
  for (const ReportStretch& s : run.stretches) {
    const Mean m = curve.value(s);
    if (!drawn(m)) continue;
    const double x = frame.x(static_cast<double>(s.last_step)), y = frame.y(m.value());
    if (before)
      svg.line({frame.x(static_cast<double>(before->last_step)), frame.y(curve.value(*before).value()), x, y},
               colour, 1.6);
    else
      svg.circle(x, y, 1.6, colour);
    before = &s;
  }
  if (!curve.held_out) return;
  for (const RunReport::Evaluation& e : run.evaluations)
    if (std::isfinite(e.loss))
      svg.circle(frame.x(static_cast<double>(e.step)), frame.y(e.loss), 4, colour,
                 fmt::format("{}: held-out loss {:.4f} at step {}", run.name(), e.loss, e.step));
}

void draw_events(Svg& svg, const Frame& frame, const RunReport& run) {
  for (const RunReport::Event& e : run.events) {
    const double x = frame.x(static_cast<double>(std::max(e.step, frame.first())));
    svg.line({x, Frame::kTop, x, frame.bottom()}, "#a00000", 1, "4 3");
    svg.circle(x, Frame::kTop, 4, "#a00000", printable(e.text, 400));
  }
}

/// Parts of a step's time in their order, with the milliseconds of a stretch.
std::vector<std::pair<std::string, double>> parts_of(const ReportStretch& s) {
  std::vector<std::pair<std::string, double>> parts;
  double rest = s.step_ms.value();
  const auto add = [&](const std::string& name, const Mean& m) {
    if (!drawn(m)) return;
    parts.emplace_back(name, m.value());
    rest -= m.value();
  };
  add("data", s.data_ms);
  for (const auto& [axis, m] : s.exposed_ms) add(axis.empty() ? "offload" : axis, m);
  parts.insert(parts.begin(), {"own work", std::max(0.0, rest)});
  return parts;
}

/// Colour from white (even load) to red (one expert has all).
std::string colour_of_entropy(double entropy) {
  const double uneven = std::clamp(1 - entropy, 0.0, 1.0);
  const auto part = [&](int from, int to) {
    return static_cast<int>(from + (to - from) * std::sqrt(uneven));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", part(0xf2, 0xb0), part(0xf2, 0x10), part(0xf2, 0x10));
}

RunCurve curve(const char* title, Mean ReportStretch::*member, bool from_zero = false) {
  return {.title = title,
          .value = [member](const ReportStretch& s) { return s.*member; },
          .from_zero = from_zero};
}

bool has(const std::vector<RunReport>& runs, const RunCurve& c) {
  return std::any_of(runs.begin(), runs.end(), [&](const RunReport& r) {
    return std::any_of(r.stretches.begin(), r.stretches.end(),
                       [&](const auto& s) { return drawn(c.value(s)); });
  });
}

}  // namespace

std::string curve_svg(const std::vector<RunReport>& runs, const RunCurve& curve) {
  Frame frame(runs, 420);
  for (const RunReport& r : runs) {
    for (const ReportStretch& s : r.stretches)
      if (const Mean m = curve.value(s); m.known()) frame.see(m.value());
    if (curve.held_out)
      for (const RunReport::Evaluation& e : r.evaluations) frame.see(e.loss);
  }
  if (curve.from_zero) frame.see(0);
  Svg svg(curve.title);
  if (!frame.make_range()) return svg.document(200, 20);
  frame.draw_axes(svg, true);
  for (size_t i = 0; i < runs.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    draw_line(svg, frame, runs[i], curve, colour);
    svg.legend(Frame::kLeft, frame.bottom() + 34 + 18 * static_cast<double>(i), colour, runs[i].name());
  }
  if (runs.size() == 1) draw_events(svg, frame, runs[0]);
  return svg.document(Frame::kLeft + Frame::kWidth + 30,
                      frame.bottom() + 48 + 18 * static_cast<double>(runs.size()));
}

std::string loss_svg(const std::vector<RunReport>& runs) {
  RunCurve loss = curve("loss by step", &ReportStretch::loss);
  loss.held_out = true;
  return curve_svg(runs, loss);
}

std::string step_time_svg(const RunReport& run) {
  Frame frame({run}, 320);
  frame.see(0);
  for (const ReportStretch& s : run.stretches)
    if (drawn(s.step_ms)) frame.see(s.step_ms.value());
  Svg svg("milliseconds of a step by what it does and waits for");
  if (!frame.make_range()) return svg.document(200, 20);
  frame.draw_axes(svg, true);
  std::map<std::string, const char*> colours;
  for (const ReportStretch& s : run.stretches) {
    if (!drawn(s.step_ms)) continue;
    const double left = frame.x(static_cast<double>(std::max(s.first_step - 1, frame.first()))),
                 right = frame.x(static_cast<double>(s.last_step));
    double below = 0;
    for (const auto& [name, ms] : parts_of(s)) {
      const auto [at, added] = colours.emplace(name, kColours[colours.size() % kColours.size()]);
      const double top = frame.y(below + ms);
      svg.box({left, top, std::max(1.0, right - left), frame.y(below) - top}, at->second,
              fmt::format("{}: {:.2f} ms of {:.2f} in steps {} to {}", name, ms, s.step_ms.value(),
                          s.first_step, s.last_step),
              0, fmt::format(" data-part=\"{}\" data-ms=\"{}\"", escape_markup(name), ms));
      below += ms;
    }
  }
  double row = frame.bottom() + 34;
  for (const auto& [name, colour] : colours) svg.legend(Frame::kLeft, row, colour, name), row += 18;
  return svg.document(Frame::kLeft + Frame::kWidth + 30, row + 14);
}

std::string expert_map_svg(const RunReport& run) {
  constexpr double kRow = 16;
  const size_t layers = run.stretches.empty() ? 0 : run.stretches.back().layers.size();
  Frame frame({run}, kRow * static_cast<double>(layers));
  Svg svg("evenness of the load of experts by layer and step");
  frame.see(0), frame.see(1);
  if (!frame.make_range() || layers == 0) return svg.document(200, 20);
  frame.draw_axes(svg, false);
  for (size_t layer = 0; layer < layers; ++layer) {
    const double top = Frame::kTop + kRow * static_cast<double>(layer);
    svg.text(Frame::kLeft - 8, top + 12, fmt::format("layer {}", layer), "end");
    for (const ReportStretch& s : run.stretches) {
      if (layer >= s.layers.size() || !drawn(s.layers[layer].entropy)) continue;  // a dense layer
      const ReportStretch::Layer& l = s.layers[layer];
      const double left = frame.x(static_cast<double>(std::max(s.first_step - 1, frame.first()))),
                   right = frame.x(static_cast<double>(s.last_step));
      const std::string drops =
          drawn(l.drop_rate) ? fmt::format(", drops {:.2f} %", 100 * l.drop_rate.value()) : "";
      svg.box({left, top, std::max(1.0, right - left), kRow - 1},
              colour_of_entropy(l.entropy.value()).c_str(),
              fmt::format("layer {}, steps {} to {}: evenness {:.3f}{}", layer, s.first_step, s.last_step,
                          l.entropy.value(), drops),
              0, fmt::format(" data-layer=\"{}\" data-evenness=\"{}\"", layer, l.entropy.value()));
    }
  }
  const double row = frame.bottom() + 40;
  svg.legend(Frame::kLeft, row, colour_of_entropy(1).c_str(), "even");
  svg.legend(Frame::kLeft + 120, row, colour_of_entropy(0.75).c_str(), "evenness 0.75");
  svg.legend(Frame::kLeft + 300, row, colour_of_entropy(0).c_str(), "one expert has all");
  return svg.document(Frame::kLeft + Frame::kWidth + 30, row + 14);
}

std::vector<Picture> run_pictures(const std::vector<RunReport>& runs) {
  std::vector<Picture> out{{"loss", "Loss by step, with points of held-out losses", loss_svg(runs)}};
  const auto add = [&](const char* name, const char* title, const RunCurve& c) {
    if (has(runs, c)) out.push_back({name, title, curve_svg(runs, c)});
  };
  add("norm", "Gradient norm by step", curve("gradient norm by step", &ReportStretch::grad_norm, true));
  add("speed", "Tokens per second", curve("tokens per second by step", &ReportStretch::tokens_per_sec, true));
  add("mfu", "Model FLOPs utilisation", curve("MFU by step", &ReportStretch::mfu, true));
  add("memory", "Highest use of the arena on rank 0, in GiB",
      curve("memory by step", &ReportStretch::mem_peak_gib, true));
  add("clock", "SM clock of rank 0's GPU, in MHz", curve("SM clock by step", &ReportStretch::gpu_clock_mhz));
  add("power", "Power of rank 0's GPU, in W", curve("power by step", &ReportStretch::gpu_power_w, true));
  if (runs.size() > 1) return out;
  const RunReport& run = runs.front();
  if (has(runs, curve("", &ReportStretch::step_ms)))
    out.push_back(
        {"step", "Milliseconds of a step on rank 0, by what it does and waits for", step_time_svg(run)});
  if (run.experts() > 0)
    out.push_back({"experts", "Evenness of the load of experts, by layer and step", expert_map_svg(run)});
  return out;
}

std::vector<std::string> run_lead(const RunReport& r) {
  std::vector<std::string> lead{fmt::format(
      "Steps {} to {}: loss {:.4f}, lowest {:.4f} at step {}; {} tokens.", r.first_step, r.last_step,
      r.last_loss, r.best_loss, r.best_step, format_count(static_cast<double>(r.tokens)))};
  const ReportStretch end = r.whole();
  if (drawn(end.mem_peak_gib) && drawn(end.mem_plan_gib))
    lead.push_back(fmt::format("Memory of rank 0: {:.3f} GiB of {:.3f} planned.", end.mem_peak_gib.value(),
                               end.mem_plan_gib.value()));
  if (r.not_finite > 0) lead.push_back(fmt::format("{} steps had a loss that was not finite.", r.not_finite));
  constexpr size_t kMostEvents = 20;
  for (size_t i = 0; i < std::min(r.events.size(), kMostEvents); ++i)
    lead.push_back(fmt::format("After step {}: {}", r.events[i].step, printable(r.events[i].text, 400)));
  if (r.events.size() > kMostEvents)
    lead.push_back(fmt::format("{} more events are in metrics.jsonl.", r.events.size() - kMostEvents));
  return lead;
}

}  // namespace ltrain
