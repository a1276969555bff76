#include "runtime/telemetry/expert_images.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/telemetry/metrics.h"

namespace ltrain {

void ExpertImages::step(const StepMetrics& m) {
  if (m.expert_tokens.empty()) return;
  if (steps_++ == 0) {
    load_.assign(m.expert_tokens.size(), {});
    drops_.assign(m.drop_rate_by_layer.size(), 0);
  }
  for (size_t layer = 0; layer < load_.size(); ++layer) {
    load_[layer].resize(m.expert_tokens[layer].size());
    for (size_t e = 0; e < load_[layer].size(); ++e) load_[layer][e] += m.expert_tokens[layer][e];
  }
  for (size_t layer = 0; layer < drops_.size(); ++layer) drops_[layer] += m.drop_rate_by_layer[layer];
}

void ExpertImages::add(std::deque<Column>& columns, Column column) {
  columns.push_back(std::move(column));
  if (columns.size() > kColumns) columns.pop_front();
}

std::vector<std::vector<double>> ExpertImages::rows_of(const std::deque<Column>& columns) {
  std::vector<std::vector<double>> rows(columns.front().size());
  for (size_t layer = 0; layer < rows.size(); ++layer)
    for (const Column& column : columns) rows[layer].push_back(column[layer]);
  return rows;
}

void ExpertImages::routing(int64_t step, const RoutingChurn& churn, TensorBoardWriter& to) {
  add(churn_columns_, churn.by_layer);
  to.image("routing_churn_by_layer", step, heat_map(rows_of(churn_columns_)));
}

void ExpertImages::write(int64_t step, TensorBoardWriter& to) {
  if (steps_ == 0) return;
  size_t experts = 0;
  for (const auto& layer : load_) experts = std::max(experts, layer.size());
  for (auto& layer : load_) {
    const double all = std::accumulate(layer.begin(), layer.end(), 0.0);
    for (double& n : layer) n = all > 0 ? n / all : 0;
    layer.resize(experts, std::numeric_limits<double>::quiet_NaN());  // a dense layer has none
  }
  for (double& rate : drops_) rate /= static_cast<double>(steps_);
  add(drop_columns_, drops_);
  to.image("expert_load", step, heat_map(load_));
  to.image("drop_rate_by_layer", step, heat_map(rows_of(drop_columns_)));
  steps_ = 0;
}

}  // namespace ltrain
