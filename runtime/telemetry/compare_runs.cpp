#include "runtime/telemetry/compare_runs.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain {
namespace {

using Mean = ReportStretch::Mean;

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

}  // namespace

std::string comparison_text(const std::vector<RunReport>& runs) {
  size_t width = 12;
  for (const RunReport& r : runs) width = std::max(width, std::min<size_t>(40, r.name().size()));
  std::string out = fmt::format("{:<{}}  {:>10}  {:>9}  {:>9} {:>10}  {:>9}  {:>10}  {:>6}\n", "run", width,
                                "last step", "loss", "lowest", "at step", "held out", "tokens/s", "MFU");
  for (const RunReport& r : runs) {
    const ReportStretch end = r.whole();
    const auto held = r.last_evaluations();
    out +=
        fmt::format("{:<{}}  {:>10}  {:>9}  {:>9.4f} {:>10}  {:>9}  {:>10}  {:>6}\n",
                    short_name(r.name(), width), width, r.last_step, number(end.loss, "{:.4f}"), r.best_loss,
                    r.best_step, held.empty() ? "-" : fmt::format("{:.4f}", held.front().loss),
                    end.tokens_per_sec.known() ? format_count(end.tokens_per_sec.value()) : "-",
                    end.mfu.known() ? fmt::format("{:.1f}%", 100 * end.mfu.value()) : "-");
  }
  out += "loss, tokens/s and MFU: means of the last quarter of each run\n";
  const std::vector<int64_t> steps = common_steps(runs);
  if (steps.empty()) return out + "\nthe runs have no step in common\n";
  out += "\nloss at the same steps\n" + fmt::format("{:>10}", "step");
  for (const RunReport& r : runs) out += fmt::format("  {:>16}", short_name(r.name(), 16));
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
      out += fmt::format("{},{},{},{},{},{},{}\n", csv_field(r.name()), s.first_step, s.last_step,
                         field(s.loss), field(s.grad_norm), field(s.tokens_per_sec), field(s.mfu));
  return out;
}

}  // namespace ltrain
