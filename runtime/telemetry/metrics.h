// What a step reports, and where it goes: metrics.jsonl, TensorBoard, the terminal. Rank 0 only.
#pragma once
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/launch/output.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Definitions stand in docs/metrics.md; names are those of metrics.jsonl.
struct StepMetrics {
  int64_t step = 0, train_steps = 0;
  int64_t end_step = 0;  ///< the last one of this run: its line is written whatever the interval
  int64_t consumed_tokens = 0, consumed_samples = 0;
  double lm_loss = 0, grad_norm = 0, lr = 0;
  std::optional<double> mtp_loss;  ///< where there is multi-token prediction
  std::optional<double> z_loss;    ///< with train.z_loss_coeff above 0
  double step_time_ms = 0, data_time_ms = 0;
  std::vector<std::pair<std::string, double>>
      exposed_comm_ms;             ///< by comm_axis: of those with more than one rank
  double exposed_offload_ms = -1;  ///< below 0: nothing is offloaded
  double tokens_per_sec = 0, tokens_per_sec_per_gpu = 0, tflops_per_gpu = 0;
  double mfu = 0;  ///< NaN: the peak is not known
  double mem_peak_gib = 0, mem_plan_gib = 0;
  double seconds_left = 0;
  double loss_scale = 0;      ///< 0: not scaled
  int64_t skipped_steps = 0;  ///< since the start of training
  bool skipped = false;       ///< this step made no update
  /// Of MoE models; by layer and expert, empty where a layer has none.
  std::vector<std::vector<double>> expert_tokens;
  std::vector<double> drop_rate_by_layer;  ///< NaN where a layer has no experts
  double balance_loss = 0, router_z_loss = 0, drop_rate = 0, expert_load_entropy = 0;
  /// With model.moe.row_budget, else empty: ExpertStatistics::beyond_slices; NaN where a layer has no
  /// experts.
  std::vector<double> slices_beyond_budget_by_layer;
  double rows_beyond_budget = 0, slices_beyond_budget = 0;
};

/// Writes runs/<name>/metrics.jsonl and, when asked, TensorBoard events.
class MetricsWriter {
 public:
  /// Appends; lines of steps after `last_step` (of an attempt that went further than its checkpoint) are
  /// dropped.
  MetricsWriter(const std::string& run_dir, bool tensorboard, int64_t last_step);
  ~MetricsWriter();
  void step(const StepMetrics& m);
  /// Of the held-out set `name`; "" where the recipe names none. `bits_per_byte` 0: not known.
  void eval(int64_t step, const std::string& name, double loss, double bits_per_byte);
  /// Sentences for the user that are new since the last call: files that cannot be written at present, or can
  /// be again.
  std::vector<std::string> notes();
  /// Writes what waits for room; the notes say what is missing for good.
  std::vector<std::string> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Sums over the steps since the last line of the log.
class IntervalMean {
 public:
  void add(const StepMetrics& m);
  int64_t steps() const { return steps_; }
  /// `last` with the means of the interval in loss, gradient norm, time and rates; the rates are those of all
  /// the interval's time.
  StepMetrics mean(const StepMetrics& last) const;
  int64_t slowest_step() const { return slowest_step_; }
  double slowest_ms() const { return slowest_ms_; }
  int64_t skipped() const { return skipped_; }
  int64_t not_finite() const { return not_finite_; }  ///< steps whose loss or gradient norm was not

 private:
  int64_t steps_ = 0, skipped_ = 0, not_finite_ = 0, slowest_step_ = 0;
  double loss_ = 0, norm_ = 0, ms_ = 0, tokens_ = 0, tokens_of_gpu_ = 0, tflop_ = 0, mfu_ms_ = 0,
         slowest_ms_ = 0;
};

/// The user's stream: a line at the end of each train.log_interval, with the means over its steps and the
/// slowest of them. On a terminal a further line in place shows the steps between.
class Progress {
 public:
  Progress(LogFormat format, int64_t log_interval);
  ~Progress();
  void step(const StepMetrics& m);
  /// A line of its own.
  void line(const std::string& text);

 private:
  void clear();
  void put(const std::string& text);
  std::string emphasized(std::string text) const;  ///< the step in bold, where there is colour
  std::unique_ptr<OutputRelay> relay_;             ///< to stderr, unless a launcher always reads it
  LogFormat format_;
  int64_t interval_;
  IntervalMean mean_;
  bool terminal_ = false, colour_ = false, drawn_ = false, quiet_ = false;
  int columns_ = 100;
  double last_draw_ = 0;
};

std::string format_duration(double seconds);  ///< "1:02:03", "4:05", "12 s"
std::string format_count(double n);           ///< "12.3k", "1.24M", up to T

}  // namespace ltrain
