// What metrics.jsonl says of a run, put together: its course in at most some hundred stretches of steps.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ltrain {

/// Entropy of the shares over its largest value: 1 when all are equal, 1 of nothing.
double load_entropy(const std::vector<double>& tokens);

/// Consecutive steps. Means are over the steps that have the number.
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
    std::vector<double> tokens;  ///< of each expert, summed; empty: the layer has none
    Mean entropy, drop_rate, slices_beyond_budget;
  };
  int64_t first_step = 0, last_step = 0, steps = 0;
  Mean loss, grad_norm, tokens_per_sec, mfu, drop_rate, balance_loss;
  Mean rows_beyond_budget, slices_beyond_budget;  ///< of runs with model.moe.row_budget
  std::vector<Layer> layers;                      ///< of MoE models
};

struct RunReport {
  struct Evaluation {
    int64_t step = 0;
    std::string set;  ///< "": the recipe names none
    double loss = 0;
  };
  std::string path;  ///< of the metrics
  std::vector<ReportStretch> stretches;
  std::vector<Evaluation> evaluations;
  int64_t steps = 0, first_step = 0, last_step = 0, tokens = 0;
  double best_loss = 0, last_loss = 0;
  int64_t best_step = 0;
  int64_t not_finite = 0;  ///< steps whose loss was none
  bool cut_off = false;    ///< the last line has no end: the run is writing it, or died
  std::vector<Evaluation> last_evaluations() const;  ///< the last of each set
  int64_t experts() const;
  ReportStretch whole() const;  ///< one stretch of the last quarter of the run
};

/// Reads RUN_DIR/metrics.jsonl (or the file itself). Error (data) with file and line for what no run writes.
RunReport read_run_report(const std::string& where);

struct ReportStyle {
  bool colour = false;
  int columns = 100;
  int64_t layer = -1;  ///< show this one's experts over time; -1: of all, where they fit
};
std::string report_text(const RunReport& report, const ReportStyle& style);
std::string report_json(const RunReport& report);

}  // namespace ltrain
