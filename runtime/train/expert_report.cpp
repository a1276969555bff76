#include "runtime/train/expert_report.h"

#include <cmath>
#include <numeric>

#include "runtime/telemetry/run_report.h"

namespace ltrain {
namespace {

const char* const kSpread =
    "a loss of model.moe.balance.kind: switch, or a larger model.moe.balance.coeff, spreads tokens";

double sum(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }

}  // namespace

void add_expert_metrics(StepMetrics& m, const ExpertStatistics& experts, int64_t tokens) {
  m.expert_tokens = experts.chosen;
  m.balance_loss = experts.balance_loss;
  m.router_z_loss = experts.z_loss;
  m.router_entropy_loss = experts.entropy_loss;
  m.router_distillation_loss = experts.distillation_loss;
  double chosen = 0, kept = 0, entropies = 0;
  int layers = 0;
  for (size_t i = 0; i < experts.chosen.size(); ++i) {
    const double here = sum(experts.chosen[i]), left = sum(experts.kept[i]);
    m.drop_rate_by_layer.push_back(here > 0 ? 1 - left / here : std::nan(""));
    if (experts.chosen[i].empty()) continue;
    chosen += here;
    kept += left;
    entropies += load_entropy(experts.chosen[i]);
    ++layers;
  }
  m.drop_rate = chosen > 0 ? 1 - kept / chosen : 0;
  m.expert_load_entropy = layers > 0 ? entropies / layers : 0;
  m.experts_per_token = layers > 0 ? chosen / (static_cast<double>(tokens) * layers) : 0;
  if (experts.beyond_slices.empty()) return;
  m.rows_beyond_budget = kept > 0 ? sum(experts.beyond_rows) / kept : 0;
  m.slices_beyond_budget = layers > 0 ? sum(experts.beyond_slices) / layers : 0;
  for (size_t i = 0; i < experts.beyond_slices.size(); ++i)
    m.slices_beyond_budget_by_layer.push_back(experts.chosen[i].empty() ? std::nan("")
                                                                        : experts.beyond_slices[i]);
}

std::vector<std::string> StarvationWatch::look(int64_t step, const ExpertStatistics& experts) {
  std::vector<std::string> lines;
  counts_.resize(experts.chosen.size());
  for (size_t layer = 0; layer < experts.chosen.size(); ++layer) {
    const std::vector<double>& tokens = experts.chosen[layer];
    counts_[layer].resize(tokens.size());
    const double even = tokens.empty() ? 0 : sum(tokens) / static_cast<double>(tokens.size());
    std::string names;
    int starving = 0;
    for (size_t e = 0; e < tokens.size(); ++e) {
      Count& c = counts_[layer][e];
      if (tokens[e] >= 0.1 * even) {
        c = {};
        continue;
      }
      if (++c.steps < kSteps || c.said) continue;
      c.said = true;
      if (++starving <= 8) names += fmt::format("{}{}", names.empty() ? "" : ", ", e);
    }
    if (starving > 0)
      lines.push_back(fmt::format(
          "WARNING: step {}: layers.{}: {} of {} experts ({}{}) had less than a tenth of an even "
          "share for {} steps; {}",
          step, layer, starving, tokens.size(), names, starving > 8 ? ", ..." : "", kSteps, kSpread));
  }
  return lines;
}

std::vector<std::string> RowBudgetWatch::look(int64_t step, const ExpertStatistics& experts, double budget) {
  std::vector<std::string> lines;
  layers_.resize(experts.beyond_slices.size());
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].slices += experts.beyond_slices[i];
  if (++steps_ < kSteps) return lines;
  steps_ = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    Count& c = layers_[i];
    const double mean = c.slices / kSteps;
    c.slices = 0;
    if (mean < kOften || c.said) continue;
    c.said = true;
    lines.push_back(fmt::format(
        "WARNING: step {}: layers.{}: a rank got more rows than model.moe.row_budget: {:g} even "
        "shares in many micro-batches ({:.2f} further slices each, mean of {} steps), which takes "
        "time; a larger budget takes memory, {}",
        step, i, budget, mean, kSteps, kSpread));
  }
  return lines;
}

}  // namespace ltrain
