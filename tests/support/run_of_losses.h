// The report of a run that has losses only.
#pragma once
#include <string>
#include <vector>

#include "runtime/telemetry/run_report.h"

namespace ltrain::test {

/// Losses of steps 1, 2, ..., a stretch each, and a held-out loss of the last one plus 0.25.
inline RunReport run_of_losses(const std::string& path, const std::vector<double>& losses) {
  RunReport r;
  r.path = path + "/metrics.jsonl";
  for (const double loss : losses) {
    ReportStretch s;
    s.first_step = s.last_step = static_cast<int64_t>(r.stretches.size()) + 1;
    s.steps = 1;
    s.loss.add(loss);
    r.stretches.push_back(s);
  }
  r.first_step = 1;
  r.steps = r.last_step = static_cast<int64_t>(losses.size());
  r.best_loss = r.last_loss = losses.back(), r.best_step = r.last_step;
  r.evaluations.push_back({r.last_step, "", losses.back() + 0.25});
  return r;
}

}  // namespace ltrain::test
