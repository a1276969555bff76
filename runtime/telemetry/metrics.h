// Metrics of a step, and their output: metrics.jsonl, TensorBoard, the terminal. Rank 0 only.
#pragma once
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/repeat_limit.h"
#include "kernels/cuda/gpu_reading.h"
#include "runtime/launch/supervisor/output.h"
#include "runtime/recipe/recipe.h"
#include "runtime/telemetry/straggler.h"

namespace ltrain {

/// Metrics of a step. docs/metrics.md defines them, under the names of metrics.jsonl.
struct StepMetrics {
  int64_t step = 0, train_steps = 0;
  int64_t end_step = 0;  ///< last step of this run, which is always logged
  int64_t consumed_tokens = 0, consumed_samples = 0;
  double lm_loss = 0, grad_norm = 0, lr = 0;
  std::vector<std::pair<std::string, double>> means;       ///< StepResult::means
  std::optional<double> ce_loss, kl;                       ///< set with a teacher
  std::vector<std::pair<std::string, double>> preference;  ///< task: dpo: names and values
  double step_time_ms = 0, data_time_ms = 0, data_wait_ms = 0;
  std::vector<std::pair<std::string, double>>
      exposed_comm_ms;             ///< key: comm_axis, for axes with more than one rank
  double exposed_offload_ms = -1;  ///< below 0: nothing is offloaded
  double tokens_per_sec = 0, tokens_per_sec_per_gpu = 0, tflops_per_gpu = 0;
  double mfu = 0;  ///< NaN: the peak is unknown
  double mem_peak_gib = 0, mem_plan_gib = 0;
  double seconds_left = 0;
  double loss_scale = 0;      ///< 0: no loss scaling
  int replicas = 0;           ///< replicas of the step; 0: the recipe has none
  int64_t skipped_steps = 0;  ///< since the start of training
  bool skipped = false;       ///< this step made no update
  /// MoE models: tokens by layer and expert; empty for a dense layer.
  std::vector<std::vector<double>> expert_tokens;
  std::vector<double> drop_rate_by_layer;  ///< NaN for a dense layer
  double balance_loss = 0, router_z_loss = 0, router_entropy_loss = 0, drop_rate = 0, expert_load_entropy = 0,
         experts_per_token = 0;
  std::optional<double> router_distillation_loss;  ///< with model.moe.router.freeze_step
  /// ExpertStatistics::beyond_slices with model.moe.row_budget, else empty; NaN for a dense layer.
  std::vector<double> slices_beyond_budget_by_layer;
  double rows_beyond_budget = 0, slices_beyond_budget = 0;
  GpuReading gpu;  ///< newest of rank 0's GPU
};

/// Share of the choices for a fixed set of tokens that changed since the last time; NaN: unknown.
struct RoutingChurn {
  double all = 0;
  std::vector<double> by_layer;  ///< NaN for a dense layer
};

/// GPU of a rank.
struct RankGpu {
  int rank = 0;
  std::string host;
  GpuReading reading;
};

class PrometheusText;

/// Writes runs/<name>/metrics.jsonl and, if requested, TensorBoard events and text for Prometheus.
class MetricsWriter {
 public:
  /// Appends to existing files. Lines of steps after `last_step`, from an attempt that got further than its
  /// checkpoint, are removed; lost_steps() counts these steps.
  MetricsWriter(const std::string& run_dir, bool tensorboard, int64_t last_step);
  ~MetricsWriter();
  int64_t lost_steps() const;
  /// Passes later steps and evaluations on.
  void also(std::unique_ptr<PrometheusText> file);
  void step(const StepMetrics& m);
  /// Writes that the launcher has started the ranks again: restart `number` of at most `most`, after
  /// `reason`.
  void restart(int number, int most, const std::string& reason);
  /// Writes the ranks that hold up the others, in the interval that ends with `step`; none: an empty list.
  void stragglers(int64_t step, const std::vector<Straggler>& found);
  /// Writes the GPUs of all ranks, in the interval that ends with `step`.
  void gpus(int64_t step, const std::vector<RankGpu>& all);
  /// Writes an evaluation of the held-out set `name`; "" if the recipe names no sets. `bits_per_byte` 0:
  /// unknown. `preference`: names and values of pairs, whose loss has no perplexity.
  void eval(int64_t step, const std::string& name, double loss, double bits_per_byte,
            const std::vector<std::pair<std::string, double>>& preference = {});
  /// Writes how many choices of a routing probe changed since the one before.
  void routing(int64_t step, const RoutingChurn& churn);
  /// Sentences for the user since the last call: files that cannot be written now, or that can be written
  /// again.
  std::vector<std::string> notes();
  /// Writes waiting records. The notes report lost ones.
  std::vector<std::string> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Means over the steps since the last log line.
class IntervalMean {
 public:
  void add(const StepMetrics& m);
  int64_t steps() const { return steps_; }
  /// `last` with the means of the interval for loss, gradient norm, time and rates. Rates are over the full
  /// time of the interval.
  StepMetrics mean(const StepMetrics& last) const;
  int64_t slowest_step() const { return slowest_step_; }
  double slowest_ms() const { return slowest_ms_; }
  int64_t skipped() const { return skipped_; }
  /// Steps with a loss or gradient norm that is not finite.
  int64_t not_finite() const { return not_finite_; }

 private:
  int64_t steps_ = 0, skipped_ = 0, not_finite_ = 0, slowest_step_ = 0;
  double loss_ = 0, norm_ = 0, ms_ = 0, tokens_ = 0, tokens_of_gpu_ = 0, tflop_ = 0, mfu_ms_ = 0,
         slowest_ms_ = 0;
};

/// Output for the user: a line at the end of each train.log_interval with the means over its steps and the
/// slowest step. On a terminal, a status line shows the steps in between.
class Progress {
 public:
  Progress(LogFormat format, int64_t log_interval);
  ~Progress();
  void step(const StepMetrics& m);
  /// Writes a separate line. Warnings that repeat are limited.
  void line(const std::string& text);

 private:
  void clear();
  void write(const std::string& line, bool warning);
  void put(const std::string& text);
  std::string emphasized(std::string text) const;  ///< the step in bold if the output has colour
  std::unique_ptr<OutputRelay> relay_;             ///< to stderr; null under a launcher, which always reads
  LogFormat format_;
  int64_t interval_;
  IntervalMean mean_;
  RepeatLimit limit_;  // repeated warnings
  bool terminal_ = false, colour_ = false, drawn_ = false, quiet_ = false;
  int columns_ = 100;
  double last_draw_ = 0;
};

std::string format_duration(double seconds);  ///< "1:02:03", "4:05", "12 s"
std::string format_count(double n);           ///< "12.3k", "1.24M", up to T

}  // namespace ltrain
