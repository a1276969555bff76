#include "runtime/train/run_reports.h"

#include <fmt/format.h>

#include "runtime/telemetry/prometheus.h"
#include "runtime/train/end_text.h"
#include "runtime/train/pair_references.h"

namespace ltrain {

void RunReports::open(const Recipe& recipe, int64_t step, const std::optional<RestartNote>& restart) {
  metrics_ = std::make_unique<MetricsWriter>(recipe.output_dir, recipe.log.tensorboard, step);
  const TelemetrySettings& t = recipe.telemetry;
  if (t.prometheus || t.prometheus_port > 0)
    metrics_->also(
        std::make_unique<PrometheusText>(PrometheusText::Options{.path = t.prometheus.value_or(""),
                                                                 .port = static_cast<int>(t.prometheus_port),
                                                                 .run = recipe.name,
                                                                 .log_interval = recipe.train.log_interval,
                                                                 .restarts = restart ? restart->number : 0}));
  progress_ = std::make_unique<Progress>(recipe.log.format, recipe.train.log_interval);
  if (!restart) return;
  metrics_->restart(restart->number, restart->most, restart->reason);
  const int64_t lost = metrics_->lost_steps();
  say({fmt::format("restart {} of {}: goes on from step {}, {} step{} lost; {}", restart->number,
                   restart->most, step, lost, lost == 1 ? " is" : "s are", restart->reason)});
}

void RunReports::say(const std::vector<std::string>& lines) {
  if (!progress_) return;
  for (const std::string& line : lines)
    if (!line.empty()) progress_->line(line);
}

void RunReports::step(const StepMetrics& m, const Recipe& recipe, const ExpertStatistics& experts,
                      const RankInfo& rank, StragglerWatch& stragglers) {
  if (rank.world_size == 1) metrics_->gpus(m.step, {{0, rank.host, m.gpu}});
  if (stragglers.compared()) metrics_->gpus(m.step, stragglers.gpus());
  metrics_->step(m);
  if (stragglers.compared()) metrics_->stragglers(m.step, stragglers.found());
  progress_->step(m);
  say(stragglers.notes());
  say(metrics_->notes());
  say(starvation_.look(m.step, experts));
  if (const auto budget = recipe.model.moe.row_budget) say(beyond_budget_.look(m.step, experts, *budget));
}

void RunReports::evaluation(int64_t step, const Recipe& recipe, const std::vector<SetResult>& results) {
  if (!metrics_) return;
  for (const SetResult& set : results) {
    metrics_->eval(step, set.name, set.result.loss, set.result.bytes > 0 ? set.result.bits_per_byte() : 0,
                   preference_metrics(recipe, set.result.preference));
    progress_->line(eval_line(step, set));
  }
}

void RunReports::routing(int64_t step, const RoutingChurn& churn) {
  if (metrics_) metrics_->routing(step, churn);
}

void RunReports::finish(const std::string& text) {
  say(metrics_->finish());
  progress_->line(text);
}

}  // namespace ltrain
