#include "planner/report/run_pictures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/printable.h"
#include "base/svg.h"
#include "planner/report/expert_pictures.h"
#include "planner/report/step_frame.h"

namespace ltrain {
namespace {

using Mean = ReportStretch::Mean;

constexpr std::array<const char*, 8> kColours{"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                              "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};

bool drawn(const Mean& m) { return m.known() && std::isfinite(m.value()); }

/// Draws the line of a run, and the points of its held-out losses.
void draw_line(Svg& svg, const StepFrame& frame, const RunReport& run, const RunCurve& curve,
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

void draw_events(Svg& svg, const StepFrame& frame, const RunReport& run) {
  for (const RunReport::Event& e : run.events) {
    const double x = frame.x(static_cast<double>(std::max(e.step, frame.first())));
    svg.line({x, StepFrame::kTop, x, frame.bottom()}, "#a00000", 1, "4 3");
    svg.circle(x, StepFrame::kTop, 4, "#a00000", printable(e.text, 400));
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
  StepFrame frame(runs, 420);
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
    svg.legend(StepFrame::kLeft, frame.bottom() + 34 + 18 * static_cast<double>(i), colour, runs[i].name());
  }
  if (runs.size() == 1) draw_events(svg, frame, runs[0]);
  return svg.document(StepFrame::kLeft + StepFrame::kWidth + 30,
                      frame.bottom() + 48 + 18 * static_cast<double>(runs.size()));
}

std::string loss_svg(const std::vector<RunReport>& runs) {
  RunCurve loss = curve("loss by step", &ReportStretch::loss);
  loss.held_out = true;
  return curve_svg(runs, loss);
}

std::string step_time_svg(const RunReport& run) {
  StepFrame frame({run}, 320);
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
  for (const auto& [name, colour] : colours) svg.legend(StepFrame::kLeft, row, colour, name), row += 18;
  return svg.document(StepFrame::kLeft + StepFrame::kWidth + 30, row + 14);
}

std::vector<Picture> run_pictures(const std::vector<RunReport>& runs, int64_t layer) {
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
  for (Picture& p : expert_pictures(run, layer)) out.push_back(std::move(p));
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
