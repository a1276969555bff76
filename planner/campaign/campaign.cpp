#include "planner/campaign/campaign.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace ltrain {
namespace {

constexpr double kHour = 3600;
/// A run with a total time above this multiple of its work does not end.
constexpr double kMostTimesWork = 1000;

/// Quantile of the normal distribution: x below which the probability is `p`.
double normal_quantile(double p) {
  double low = -10, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double x = (low + high) / 2;
    (0.5 * std::erfc(-x / std::sqrt(2.0)) < p ? low : high) = x;
  }
  return (low + high) / 2;
}

/// Smallest number of spares with which waiting takes less than 1 % of the time between two hardware
/// failures.
int64_t enough_spares(double hardware_rate, double repair) {
  int64_t spares = 0;
  while (spares < 100000 && mean_spare_wait(hardware_rate, repair, spares) * hardware_rate > 0.01) ++spares;
  return spares;
}

}  // namespace

std::vector<double> straggler_quantiles(int64_t ranks, double deviation) {
  if (deviation == 0) return {1};
  constexpr int kParts = 2000;
  std::vector<double> out;
  for (int i = 0; i < kParts; ++i) {
    const double part = std::pow((i + 0.5) / kParts, 1.0 / static_cast<double>(ranks));
    out.push_back(1 + deviation * normal_quantile(part));
  }
  return out;
}

double straggler_slowdown(int64_t ranks, double deviation) {
  const std::vector<double> values = straggler_quantiles(ranks, deviation);
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double mean_spare_wait(double hardware_rate, double repair, int64_t spares) {
  double blocked = 1;  // Erlang's recursion
  const double load = hardware_rate * repair;
  for (int64_t s = 1; s <= spares; ++s) blocked = load * blocked / (static_cast<double>(s) + load * blocked);
  return blocked * repair / static_cast<double>(spares + 1);
}

CampaignTerms campaign_terms(const CampaignJob& job, const CampaignSettings& s) {
  CampaignTerms t;
  const double gpus = static_cast<double>(job.gpus), nodes = static_cast<double>(job.nodes());
  t.hardware_rate = (gpus / s.gpu_hours.value + nodes / s.node_hours.value) / kHour;
  t.failure_rate = t.hardware_rate + (nodes / s.network_hours.value + nodes / s.software_hours.value) / kHour;
  const double files = job.checkpoint_bytes / s.storage_bytes_per_second.value;
  t.restart = s.detection_seconds.value + s.restart_seconds.value + files;
  t.stall = s.save_stall_seconds.value +
            (job.async_save ? job.checkpoint_bytes / gpus / s.copy_bytes_per_second.value : files);
  t.write = job.async_save ? files : 0;
  t.maintenance_interval = s.maintenance_interval_hours.value * kHour;
  if (t.maintenance_interval > 0)
    t.maintenance = s.maintenance_seconds.value + files + t.restart - s.detection_seconds.value;
  t.repair = s.repair_hours.value * kHour;
  t.spares = s.spare_nodes.given ? static_cast<int64_t>(s.spare_nodes.value)
                                 : enough_spares(t.hardware_rate, t.repair);
  t.slowdown = straggler_slowdown(job.gpus, s.straggler_deviation.value);
  return t;
}

double young_interval(const CampaignTerms& t) { return std::sqrt(2 * t.stall / t.failure_rate) / t.slowdown; }

double best_interval(const CampaignTerms& t) {
  // exp(-rate (interval + stall)) - 1 + rate * interval increases with the interval (of slowed work). It
  // starts below 0 and is above 0 at 1 / rate.
  double low = 0, high = 1 / t.failure_rate;
  for (int i = 0; i < 100; ++i) {
    const double x = (low + high) / 2;
    (std::expm1(-t.failure_rate * (x + t.stall)) + t.failure_rate * x < 0 ? low : high) = x;
  }
  return std::max(low, t.write - t.stall) / t.slowdown;  // a save must be complete before the next begins
}

CampaignTimes campaign_times(const CampaignJob& job, const CampaignTerms& t, double interval) {
  const double rate = t.failure_rate, segment = interval * t.slowdown + t.stall;
  if (segment < t.write * (1 - 1e-9))
    fail(ExitCode::usage,
         "campaign: a save every {:.0f} s of work, and {:.0f} s until it is written: saves overtake each "
         "other; "
         "nearest valid value: {:.0f} s",
         interval, t.write, (t.write - t.stall) / t.slowdown);
  CampaignTimes out;
  out.work = job.work_seconds;
  out.stragglers = job.work_seconds * (t.slowdown - 1);
  const double all_work = out.work + out.stragglers, saves = out.work / interval;
  const double exponent = rate * (t.restart + t.write + segment);
  if (exponent > 50 ||
      std::exp(rate * (t.restart + t.write)) * std::expm1(rate * segment) > kMostTimesWork * rate * interval)
    fail(ExitCode::usage,
         "campaign: the run does not end: a failure every {:.0f} s, a restart takes {:.0f} s, a save {:.0f} "
         "s and comes "
         "every {:.0f} s of work; what would help: restart_seconds, storage_bytes_per_second, fewer GPUs",
         1 / rate, t.restart, t.stall + t.write, interval);
  const double at_risk = saves * std::exp(rate * (t.restart + t.write)) * std::expm1(rate * segment) / rate;
  out.failures = rate * at_risk;
  out.saves = saves * t.stall;
  out.restarts = out.failures * -std::expm1(-rate * t.restart) / rate;
  out.lost = at_risk - all_work - out.saves - out.restarts;
  out.spare_waits = t.hardware_rate * at_risk * mean_spare_wait(t.hardware_rate, t.repair, t.spares);
  const double running = at_risk + out.spare_waits;
  if (t.maintenance_interval > 0) out.maintenance = running / t.maintenance_interval * t.maintenance;
  out.total = running + out.maintenance;
  return out;
}

}  // namespace ltrain
