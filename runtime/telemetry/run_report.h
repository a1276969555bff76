// Summary of a run from metrics.jsonl: its course in at most some hundred stretches of steps.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ltrain {

/// Entropy of the shares divided by its maximum: 1 if all are equal or all are zero.
double load_entropy(const std::vector<double>& tokens);

/// Consecutive steps. Means are over the steps that have the value.
struct ReportStretch {
  struct Mean {
    double sum = 0;
    int64_t count = 0;
    void add(double v) { sum += v, ++count; }
    void add(const Mean& m) { sum += m.sum, count += m.count; }
    bool known() const { return count > 0; }
    double value() const { return sum / static_cast<double>(count); }
  };
  struct Layer {
    std::vector<double> tokens;  ///< tokens of each expert, summed; empty: a dense layer
    Mean entropy, drop_rate, slices_beyond_budget;
    Mean churn;  ///< routing probes in the stretch
  };
  int64_t first_step = 0, last_step = 0, steps = 0;
  Mean loss, grad_norm, tokens_per_sec, mfu, drop_rate, balance_loss;
  Mean step_ms, data_ms, mem_peak_gib, mem_plan_gib;
  Mean gpu_clock_mhz, gpu_power_w;  ///< readings of rank 0's GPU
  /// Exposed communication by axis ("dp"), in ms; "": waits for what is offloaded.
  std::map<std::string, Mean> exposed_ms;
  Mean rows_beyond_budget, slices_beyond_budget;  ///< for runs with model.moe.row_budget
  std::vector<Layer> layers;                      ///< for MoE models
};

struct RunReport {
  struct Evaluation {
    int64_t step = 0;
    std::string set;  ///< "": the recipe names no sets
    double loss = 0;
    bool of_tokens = true;  ///< a mean over tokens, which has a perplexity; false: over pairs of texts
  };
  /// A restart or a straggler.
  struct Event {
    int64_t step = 0;
    std::string text;
  };
  std::string path;          ///< path of the metrics file
  std::string name() const;  ///< path of the run's folder
  std::vector<ReportStretch> stretches;
  std::vector<Evaluation> evaluations;
  std::vector<Event> events;
  int64_t steps = 0, first_step = 0, last_step = 0, tokens = 0;
  double best_loss = 0, last_loss = 0;
  int64_t best_step = 0;
  int64_t not_finite = 0;  ///< steps with a loss that is not finite
  double first_time = 0,
         last_time = 0;     ///< Unix time: begin of the first step, end of the last; 0: not recorded
  double step_seconds = 0;  ///< sum over the steps with a time
  bool cut_off = false;     ///< the last line is incomplete: the run is writing it, or died
  /// Share of the time since the first step began that steps took which count, 0 to 1; nothing without times.
  std::optional<double> goodput() const;
  std::vector<Evaluation> last_evaluations() const;  ///< the last evaluation of each set
  int64_t experts() const;
  ReportStretch whole() const;  ///< one stretch with the last quarter of the run
};

/// Reads RUN_DIR/metrics.jsonl (or the file itself). Throws Error (data) with file and line for contents that
/// no run writes.
RunReport read_run_report(const std::string& where);

struct ReportStyle {
  bool colour = false;
  int columns = 100;
  int64_t layer = -1;  ///< layer whose experts are shown over time; -1: all layers, if they fit
};
std::string report_text(const RunReport& report, const ReportStyle& style);
std::string report_json(const RunReport& report);

}  // namespace ltrain
