// The report for people: plots over time, and maps of expert load.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/telemetry/run_report.h"

namespace ltrain {
namespace {

using Value = std::function<ReportStretch::Mean(const ReportStretch&)>;

/// Groups stretches into at most `columns` columns of equal shares of the run.
std::vector<std::pair<size_t, size_t>> columns_of(size_t stretches, size_t columns) {
  std::vector<std::pair<size_t, size_t>> out;
  const size_t n = std::min(stretches, columns);
  for (size_t i = 0; i < n; ++i) out.push_back({stretches * i / n, stretches * (i + 1) / n});
  return out;
}

/// Sparkline with eight heights from the minimum to the maximum; blank for unknown values.
std::string spark(const RunReport& r, const Value& value, size_t columns) {
  std::vector<double> values;
  for (const auto& [from, to] : columns_of(r.stretches.size(), columns)) {
    ReportStretch::Mean m;
    for (size_t i = from; i < to; ++i) m.add(value(r.stretches[i]));
    values.push_back(m.known() ? m.value() : std::nan(""));
  }
  double least = INFINITY, most = -INFINITY;
  for (double v : values)
    if (std::isfinite(v)) least = std::min(least, v), most = std::max(most, v);
  static const char* const kHeights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::string text;
  for (double v : values) {
    const double part = most > least ? (v - least) / (most - least) : 0;
    text += std::isfinite(v) ? kHeights[std::clamp(static_cast<int>(part * 8), 0, 7)] : " ";
  }
  return text;
}

/// A load relative to the even one, as a character or as a colour from blue (none) over grey (even) to red (4
/// and more).
std::string cell(double load, bool colour) {
  if (!colour) {
    static const char kShades[] = " .:-=+*#%@";  // '=' is even; each character is a factor of 1.41
    const double at = load <= 0 ? 0 : 4 + 2 * std::log2(load);
    return std::string(1, kShades[load <= 0 ? 0 : std::clamp(static_cast<int>(std::lround(at)), 1, 9)]);
  }
  static const int kColours[] = {17, 18, 25, 67, 244, 180, 173, 166, 160, 196};
  const int at = load <= 0 ? 0 : std::clamp(static_cast<int>(std::lround(4 + 2 * std::log2(load))), 1, 9);
  return fmt::format("\033[48;5;{}m \033[0m", kColours[at]);
}

std::string percent(const ReportStretch::Mean& m) {
  return m.known() ? fmt::format("{:.2f} %", 100 * m.value()) : "-";
}

class Text {
 public:
  Text(const RunReport& r, const ReportStyle& style) : r_(r), style_(style), last_(r.whole()) {
    width_ = static_cast<size_t>(std::max(20, style.columns - 34));
  }

  std::string make() {
    line("{}: steps {} to {}, {} tokens{}", r_.path, r_.first_step, r_.last_step,
         format_count(static_cast<double>(r_.tokens)), r_.cut_off ? "; the last line is not finished" : "");
    course(
        "loss", [](const ReportStretch& s) { return s.loss; },
        fmt::format("{:.4f} last, {:.4f} best, step {}", r_.last_loss, r_.best_loss, r_.best_step));
    course(
        "gradient norm", [](const ReportStretch& s) { return s.grad_norm; }, mean(last_.grad_norm, "{:.3f}"));
    course(
        "tokens/s", [](const ReportStretch& s) { return s.tokens_per_sec; },
        last_.tokens_per_sec.known() ? format_count(last_.tokens_per_sec.value()) : "-");
    course(
        "MFU", [](const ReportStretch& s) { return s.mfu; }, percent(last_.mfu));
    if (const auto share = r_.goodput())
      line("{:<14} {:.1f} % of {} since the first step began", "goodput", 100 * *share,
           format_duration(r_.last_time - r_.first_time));
    if (last_.gpu_clock_mhz.known())
      course(
          "SM clock", [](const ReportStretch& s) { return s.gpu_clock_mhz; },
          mean(last_.gpu_clock_mhz, "{:.0f} MHz"));
    if (last_.gpu_power_w.known())
      course(
          "GPU power", [](const ReportStretch& s) { return s.gpu_power_w; },
          mean(last_.gpu_power_w, "{:.0f} W"));
    if (r_.not_finite > 0) line("{} steps had a loss that was not finite", r_.not_finite);
    for (const RunReport::Evaluation& e : r_.last_evaluations())
      line("{:<14} {:.4f} at step {}{}; {} evaluations", e.set.empty() ? "held out" : printable(e.set, 64),
           e.loss, e.step, e.of_tokens ? fmt::format(", perplexity {:.2f}", std::exp(e.loss)) : "",
           std::count_if(r_.evaluations.begin(), r_.evaluations.end(),
                         [&](const RunReport::Evaluation& other) { return other.set == e.set; }));
    if (r_.experts() > 0) experts();
    return text_;
  }

 private:
  template <class... A>
  void line(fmt::format_string<A...> format, A&&... args) {
    text_ += fmt::format(format, std::forward<A>(args)...) + "\n";
  }
  static std::string mean(const ReportStretch::Mean& m, const char* format) {
    return m.known() ? fmt::format(fmt::runtime(format), m.value()) : "-";
  }
  void course(const char* name, const Value& value, const std::string& now) {
    line("{:<14} {}  {}", name, spark(r_, value, width_), now);
  }

  static double even(const std::vector<double>& tokens) {
    return std::accumulate(tokens.begin(), tokens.end(), 0.0) / static_cast<double>(tokens.size());
  }

  void experts() {
    course(
        "drop rate", [](const ReportStretch& s) { return s.drop_rate; }, percent(last_.drop_rate));
    if (last_.balance_loss.known() && last_.balance_loss.sum > 0)
      course(
          "balance loss", [](const ReportStretch& s) { return s.balance_loss; },
          mean(last_.balance_loss, "{:.5f}"));
    if (last_.rows_beyond_budget.known())
      course(
          "beyond budget", [](const ReportStretch& s) { return s.rows_beyond_budget; },
          fmt::format("{} of the rows, in {:.2f} slices a micro-batch and layer",
                      percent(last_.rows_beyond_budget), last_.slices_beyond_budget.value()));
    line("");
    line("Experts of each layer, by load over an even one, in steps {} to {}: {}", last_.first_step,
         last_.last_step, legend());
    line("{:>5} {:>8} {:>8} {:>6} {:>6}", "layer", "entropy", "dropped", "least", "most");
    for (size_t i = 0; i < last_.layers.size(); ++i) {
      const auto& layer = last_.layers[i];
      if (layer.tokens.empty()) continue;
      const double share = even(layer.tokens);
      const auto [least, most] = std::minmax_element(layer.tokens.begin(), layer.tokens.end());
      line("{:>5} {:>8.4f} {:>8} {:>6.2f} {:>6.2f}  {}", i, layer.entropy.value(), percent(layer.drop_rate),
           share > 0 ? *least / share : 0, share > 0 ? *most / share : 0, row(layer.tokens));
    }
    over_time();
  }

  std::string legend() const {
    std::string text;
    for (const auto& [load, name] : {std::pair<double, const char*>{0, "none"},
                                     {0.25, "1/4"},
                                     {0.5, "1/2"},
                                     {1, "even"},
                                     {2, "2"},
                                     {4, "4"},
                                     {6, "more"}})
      text += fmt::format("{}[{}] {}", text.empty() ? "" : "  ", cell(load, style_.colour), name);
    return text;
  }

  /// Experts of one layer side by side. If they exceed the columns, neighbours are averaged.
  std::string row(const std::vector<double>& tokens) const {
    const double share = even(tokens);
    std::string text;
    for (const auto& [from, to] : columns_of(tokens.size(), width_)) {
      const double sum = std::accumulate(tokens.begin() + static_cast<int64_t>(from),
                                         tokens.begin() + static_cast<int64_t>(to), 0.0);
      text += cell(share > 0 ? sum / static_cast<double>(to - from) / share : 0, style_.colour);
    }
    return text;
  }

  /// Experts of a layer one below the other, with time from left to right.
  void over_time() {
    constexpr int64_t kRows = 64;  // limit over all layers, unless one is selected
    int64_t rows = 0;
    for (const auto& layer : last_.layers) rows += static_cast<int64_t>(layer.tokens.size());
    if (style_.layer < 0 && rows > kRows) {
      line("\n--layer N shows a layer's experts over time");
      return;
    }
    for (size_t i = 0; i < last_.layers.size(); ++i) {
      if (last_.layers[i].tokens.empty() || (style_.layer >= 0 && static_cast<int64_t>(i) != style_.layer))
        continue;
      line("\nlayer {}, steps {} to {} from left to right", i, r_.first_step, r_.last_step);
      for (size_t e = 0; e < last_.layers[i].tokens.size(); ++e) {
        std::string map;
        for (const auto& [from, to] : columns_of(r_.stretches.size(), width_)) {
          double mine = 0, all = 0;
          for (size_t s = from; s < to; ++s) {
            const auto& tokens = r_.stretches[s].layers[i].tokens;
            mine += tokens[e];
            all += even(tokens);
          }
          map += cell(all > 0 ? mine / all : 0, style_.colour);
        }
        line("{:>5} {}", e, map);
      }
    }
  }

  const RunReport& r_;
  ReportStyle style_;
  ReportStretch last_;  // stretch of the last quarter
  size_t width_ = 60;
  std::string text_;
};

}  // namespace

std::string report_text(const RunReport& r, const ReportStyle& style) {
  if (r.stretches.empty())
    return fmt::format("{}: no steps, {} evaluations, the last loss {:.4f}\n", r.path, r.evaluations.size(),
                       r.evaluations.back().loss);
  const auto& layers = r.stretches.back().layers;
  if (style.layer >= 0 && (style.layer >= static_cast<int64_t>(layers.size()) ||
                           layers[static_cast<size_t>(style.layer)].tokens.empty()))
    fail(ExitCode::usage, "--layer {}: {}", style.layer,
         layers.empty() ? "the run is of a dense model"
                        : fmt::format("has no experts; layers are 0 to {}", layers.size() - 1));
  return Text(r, style).make();
}

}  // namespace ltrain
