// Metrics as text for Prometheus (exposition format 0.0.4): a file for a collector that reads files, and a
// page at a port.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/telemetry/metrics.h"
#include "runtime/telemetry/metrics_server.h"

namespace ltrain {

/// Rank 0's file of telemetry.prometheus and page of telemetry.prometheus_port. The file always has one whole
/// state: it is written beside and renamed.
class PrometheusText {
 public:
  struct Options {
    std::string path = {};     ///< empty: no file
    int port = 0;              ///< 0: no page
    std::string run = {};      ///< value of the label "run"
    int64_t log_interval = 1;  ///< steps between two writes
    int restarts = 0;          ///< restarts of this run so far
  };
  /// If the page cannot be served, notes() has a warning.
  explicit PrometheusText(Options options);

  /// Adds a step, and writes the file at the end of each interval and of the run.
  void step(const StepMetrics& m);
  /// Sets the held-out loss of a set, "" if the recipe names none. The next write has it.
  void eval(const std::string& set, double loss) { eval_loss_[set] = loss; }
  /// Sets the ranks that hold up the others now. The next write has them.
  void stragglers(const std::vector<Straggler>& found) { stragglers_ = found; }
  /// Sets the GPUs of all ranks. The next write has them.
  void gpus(const std::vector<RankGpu>& all) { gpus_ = all; }
  /// Sets the churn of routers at the last probe. The next write has it.
  void routing(const RoutingChurn& churn) { churn_ = churn; }
  /// Writes what is known, at the end of the run.
  void finish();
  /// Sentences for the user since the last call: the page is served or not, the file cannot be written, or
  /// can be again.
  std::vector<std::string> notes() { return std::exchange(notes_, {}); }

 private:
  void write(const StepMetrics& m);
  const Options o_;
  std::unique_ptr<MetricsServer> server_;
  IntervalMean mean_;
  StepMetrics last_;
  bool any_ = false, failing_ = false;
  std::map<std::string, double> eval_loss_;
  std::vector<Straggler> stragglers_;
  std::vector<RankGpu> gpus_;
  RoutingChurn churn_;
  std::vector<std::string> notes_;
};

/// Text of the file. `m`: means over the interval; `now`: Unix time in seconds.
std::string prometheus_text(const StepMetrics& m, const std::string& run, int restarts,
                            const std::map<std::string, double>& eval_loss, double now,
                            const std::vector<Straggler>& stragglers = {},
                            const std::vector<RankGpu>& gpus = {}, const RoutingChurn& churn = {});

}  // namespace ltrain
