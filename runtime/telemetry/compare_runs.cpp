#include "runtime/telemetry/compare_runs.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/printable.h"
#include "base/svg.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain {
namespace {

using Mean = ReportStretch::Mean;

/// The path without metrics.jsonl, which all runs share.
std::string name_of(const RunReport& r) {
  constexpr std::string_view kFile = "/metrics.jsonl";
  return r.path.ends_with(kFile) ? r.path.substr(0, r.path.size() - kFile.size()) : r.path;
}

/// Mean loss around `step`; unknown if the run does not have that step.
Mean loss_at(const RunReport& r, int64_t step) {
  for (const ReportStretch& s : r.stretches)
    if (s.first_step <= step && step <= s.last_step) return s.loss;
  return {};
}

std::string number(const Mean& m, const char* format) {
  return m.known() && std::isfinite(m.value()) ? fmt::format(fmt::runtime(format), m.value()) : "-";
}

/// The end of a name, which differs most.
std::string short_name(const std::string& name, size_t most) {
  return printable(name.size() <= most ? name : "..." + name.substr(name.size() - (most - 3)));
}

/// Text as a field of CSV (RFC 4180).
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

/// Steps at which runs are compared: the last step that all have, and some before it.
std::vector<int64_t> common_steps(const std::vector<RunReport>& runs) {
  constexpr int64_t kRows = 8;
  int64_t first = 0, last = INT64_MAX;
  for (const RunReport& r : runs) first = std::max(first, r.first_step), last = std::min(last, r.last_step);
  std::vector<int64_t> out;
  for (int64_t i = 1; i <= kRows; ++i) {
    const int64_t step = first + (last - first) * i / kRows;
    if (last >= first && (out.empty() || step > out.back())) out.push_back(step);
  }
  return out;
}

constexpr std::array<const char*, 8> kColours{"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                              "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};

}  // namespace

std::string comparison_text(const std::vector<RunReport>& runs) {
  size_t width = 12;
  for (const RunReport& r : runs) width = std::max(width, std::min<size_t>(40, name_of(r).size()));
  std::string out = fmt::format("{:<{}}  {:>10}  {:>9}  {:>9} {:>10}  {:>9}  {:>10}  {:>6}\n", "run", width,
                                "last step", "loss", "lowest", "at step", "held out", "tokens/s", "MFU");
  for (const RunReport& r : runs) {
    const ReportStretch end = r.whole();
    const auto held = r.last_evaluations();
    out +=
        fmt::format("{:<{}}  {:>10}  {:>9}  {:>9.4f} {:>10}  {:>9}  {:>10}  {:>6}\n",
                    short_name(name_of(r), width), width, r.last_step, number(end.loss, "{:.4f}"),
                    r.best_loss, r.best_step, held.empty() ? "-" : fmt::format("{:.4f}", held.front().loss),
                    end.tokens_per_sec.known() ? format_count(end.tokens_per_sec.value()) : "-",
                    end.mfu.known() ? fmt::format("{:.1f}%", 100 * end.mfu.value()) : "-");
  }
  out += "loss, tokens/s and MFU: means of the last quarter of each run\n";
  const std::vector<int64_t> steps = common_steps(runs);
  if (steps.empty()) return out + "\nthe runs have no step in common\n";
  out += "\nloss at the same steps\n" + fmt::format("{:>10}", "step");
  for (const RunReport& r : runs) out += fmt::format("  {:>16}", short_name(name_of(r), 16));
  out += "\n";
  for (const int64_t step : steps) {
    out += fmt::format("{:>10}", step);
    for (const RunReport& r : runs) out += fmt::format("  {:>16}", number(loss_at(r, step), "{:.4f}"));
    out += "\n";
  }
  return out;
}

std::string comparison_csv(const std::vector<RunReport>& runs) {
  std::string out = "run,first_step,last_step,loss,grad_norm,tokens_per_sec,mfu\n";
  const auto field = [](const Mean& m) {
    return m.known() && std::isfinite(m.value()) ? fmt::format("{}", m.value()) : std::string();
  };
  for (const RunReport& r : runs)
    for (const ReportStretch& s : r.stretches)
      out += fmt::format("{},{},{},{},{},{},{}\n", csv_field(name_of(r)), s.first_step, s.last_step,
                         field(s.loss), field(s.grad_norm), field(s.tokens_per_sec), field(s.mfu));
  return out;
}

std::string comparison_svg(const std::vector<RunReport>& runs) {
  constexpr double kLeft = 80, kTop = 30, kWidth = 860, kHeight = 420;
  double least = INFINITY, most = -INFINITY;
  int64_t first = INT64_MAX, last = 0;
  const auto see = [&](double loss) {
    if (std::isfinite(loss)) least = std::min(least, loss), most = std::max(most, loss);
  };
  for (const RunReport& r : runs) {
    first = std::min(first, r.first_step), last = std::max(last, r.last_step);
    for (const ReportStretch& s : r.stretches)
      if (s.loss.known()) see(s.loss.value());
    for (const RunReport::Evaluation& e : r.evaluations) see(e.loss);
  }
  Svg svg("loss by step");
  if (!(least <= most)) return svg.document(200, 20);
  if (most - least < 1e-12) most += 0.5, least -= 0.5;
  if (last == first) ++last;
  const auto x = [&](int64_t step) {
    return kLeft + kWidth * static_cast<double>(step - first) / static_cast<double>(last - first);
  };
  const auto y = [&](double loss) { return kTop + kHeight * (most - loss) / (most - least); };
  svg.box({kLeft, kTop, kWidth, kHeight}, "#fafafa");
  for (int i = 0; i <= 4; ++i) {
    const double loss = least + (most - least) * i / 4;
    svg.line({kLeft, y(loss), kLeft + kWidth, y(loss)}, "#dddddd");
    svg.text(kLeft - 8, y(loss) + 4, fmt::format("{:.3g}", loss), "end");
    const int64_t step = first + (last - first) * i / 4;
    svg.text(x(step), kTop + kHeight + 18, fmt::format("{}", step), "middle");
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    const ReportStretch* before = nullptr;
    for (const ReportStretch& s : runs[i].stretches) {
      if (!s.loss.known() || !std::isfinite(s.loss.value())) continue;
      if (before)
        svg.line({x(before->last_step), y(before->loss.value()), x(s.last_step), y(s.loss.value())}, colour,
                 1.6);
      else
        svg.circle(x(s.last_step), y(s.loss.value()), 1.6, colour);
      before = &s;
    }
    for (const RunReport::Evaluation& e : runs[i].evaluations)
      if (std::isfinite(e.loss))
        svg.circle(x(e.step), y(e.loss), 4, colour,
                   fmt::format("{}: held-out loss {:.4f} at step {}", name_of(runs[i]), e.loss, e.step));
    svg.legend(kLeft, kTop + kHeight + 34 + 18 * static_cast<double>(i), colour, name_of(runs[i]));
  }
  return svg.document(kLeft + kWidth + 30, kTop + kHeight + 48 + 18 * static_cast<double>(runs.size()));
}

}  // namespace ltrain
