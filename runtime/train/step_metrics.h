// Metrics of a step that has ended, from what rank 0 knows of it.
#pragma once
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/training_state.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/recipe.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/train/file_wait.h"

namespace ltrain {

struct EndedStep {
  const Recipe& recipe;
  const StepResult& result;
  DataPosition position;           ///< after the step
  int64_t step = 0, end_step = 0;  ///< numbers of the step, and of the last one of this attempt
  int64_t steps = 1;               ///< steps of this attempt
  double elapsed = 0;              ///< seconds of these steps
  int64_t samples = 0;             ///< trained in the step: fewer than the global batch while it grows
  double seconds = 0;              ///< duration of the step
  DataWaits waits;                 ///< waits for data in the step, in seconds
  const std::set<std::string>& comm_axes;  ///< comm_axis of each group with more than one rank
  /// Seconds that compute waited, by comm_axis; "": for offload memory.
  const std::vector<std::pair<std::string, double>>& exposed;
  double lr = 0;
  double loss_scale = 0;      ///< 0: no loss scaling
  int64_t skipped_steps = 0;  ///< since the start of training
  int world_size = 1;
  double flops = 0;                           ///< model FLOPs of the step, all ranks
  int64_t arena_peak = 0, arena_planned = 0;  ///< bytes of this rank
};

/// All but the MFU and the readings of the GPU.
StepMetrics step_metrics(const EndedStep& ended);

}  // namespace ltrain
