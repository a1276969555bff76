// Heat maps of MoE layers as images in TensorBoard: load by expert, and drops and churn over time.
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/telemetry/tensorboard.h"

namespace ltrain {

struct StepMetrics;
struct RoutingChurn;

/// Images have a row for each layer, dense ones too. expert_load has a column for each expert: its share of
/// the layer's choices since the image before. drop_rate_by_layer and routing_churn_by_layer have a column
/// for each image so far, the newest last, at most kColumns, of this attempt of the run.
class ExpertImages {
 public:
  static constexpr size_t kColumns = 256;

  void step(const StepMetrics& m);
  void routing(int64_t step, const RoutingChurn& churn, TensorBoardWriter& to);
  /// Writes the load and the drops of the steps since the last call; of none, nothing.
  void write(int64_t step, TensorBoardWriter& to);

 private:
  using Column = std::vector<double>;
  static std::vector<std::vector<double>> rows_of(const std::deque<Column>& columns);
  static void add(std::deque<Column>& columns, Column column);

  std::vector<std::vector<double>> load_;  // choices by layer and expert
  Column drops_;                           // sums of the steps' rates
  int64_t steps_ = 0;
  std::deque<Column> drop_columns_, churn_columns_;
};

}  // namespace ltrain
