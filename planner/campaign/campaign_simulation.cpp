#include "planner/campaign/campaign_simulation.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "base/hash/mix64.h"

namespace ltrain {
namespace {

class OneRun {
 public:
  OneRun(const CampaignJob& job, const CampaignTerms& terms, const std::vector<double>& slowdowns,
         double interval, uint64_t seed)
      : job_(job), t_(terms), slowdowns_(slowdowns), interval_(interval), seed_(seed) {}

  void go() {
    next_failure_ = exponential(1 / t_.failure_rate);
    next_maintenance_ = t_.maintenance_interval;
    while (work_ < job_.work_seconds) {
      if (t_.maintenance_interval > 0 && now_ >= next_maintenance_) maintain();
      const double part = std::min(interval_, job_.work_seconds - work_);
      const double end =
          now_ + part * slowdowns_[static_cast<size_t>(uniform() * static_cast<double>(slowdowns_.size()))] +
          t_.stall;
      if (next_failure_ < end) {
        fail_once();
        continue;
      }
      now_ = end;
      whole_ = work_;
      work_ += part;
      written_at_ = now_ + t_.write;
    }
  }
  double seconds() const { return now_; }
  double failures() const { return failures_; }

 private:
  double uniform() {
    return (static_cast<double>(mix64(seed_ + 0x9e3779b97f4a7c15ull * ++drawn_) >> 11) + 0.5) * 0x1p-53;
  }
  double exponential(double mean) { return -mean * std::log(uniform()); }

  void maintain() {  // saves first; nothing fails during maintenance
    now_ += t_.maintenance;
    next_failure_ += t_.maintenance;
    next_maintenance_ = now_ + t_.maintenance_interval;
    written_at_ = now_;
  }

  void fail_once() {
    now_ = next_failure_;
    if (now_ < written_at_) work_ = whole_;  // the last save is not complete yet
    for (;;) {
      ++failures_;
      if (uniform() < t_.hardware_rate / t_.failure_rate) replace();
      next_failure_ = now_ + exponential(1 / t_.failure_rate);
      if (next_failure_ >= now_ + t_.restart) break;
      now_ = next_failure_;
    }
    now_ += t_.restart;
    written_at_ = now_;
  }

  /// Sends a node to repair and replaces it by a spare: at once, or when the first one is back.
  void replace() {
    while (!repaired_.empty() && repaired_.top() <= now_) repaired_.pop();
    const bool none_left = static_cast<int64_t>(repaired_.size()) >= t_.spares;
    repaired_.push(now_ + exponential(t_.repair));
    if (!none_left) return;
    now_ = repaired_.top();
    repaired_.pop();
  }

  const CampaignJob& job_;
  const CampaignTerms& t_;
  const std::vector<double>& slowdowns_;  ///< slowdowns of the slowest rank, equally likely
  double interval_;
  uint64_t seed_, drawn_ = 0;
  double now_ = 0, work_ = 0;
  double whole_ = 0;       ///< work of the save before the last
  double written_at_ = 0;  ///< time at which the last save is complete
  double next_failure_ = 0, next_maintenance_ = 0, failures_ = 0;
  std::priority_queue<double, std::vector<double>, std::greater<>> repaired_;
};

}  // namespace

SimulatedCampaign simulate_campaign(const CampaignJob& job, const CampaignTerms& terms,
                                    const CampaignSettings& settings, double interval, uint64_t seed) {
  constexpr double kFailures = 5000, kError = 0.002;
  const std::vector<double> slowdowns = straggler_quantiles(job.gpus, settings.straggler_deviation.value);
  SimulatedCampaign out;
  double sum = 0, squares = 0, failures = 0;
  const auto enough = [&] { return failures >= kFailures && out.error < kError * out.seconds; };
  while (out.runs < 8 || (!enough() && out.runs < 4000)) {
    OneRun run(job, terms, slowdowns, interval, mix64(seed + static_cast<uint64_t>(out.runs)));
    run.go();
    ++out.runs;
    sum += run.seconds();
    squares += run.seconds() * run.seconds();
    failures += run.failures();
    out.seconds = sum / out.runs;
    out.failures = failures / out.runs;
    out.error = std::sqrt(std::max(0.0, squares / out.runs - out.seconds * out.seconds) / out.runs);
  }
  return out;
}

}  // namespace ltrain
