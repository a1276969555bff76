// Simulation of a schedule: start and end of each action, idle time of ranks, and saved activations.
#pragma once
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace ltrain::pipeline {

/// Costs of one micro-batch on each stage, in seconds or any other unit. A full backward costs input +
/// weight.
struct StageCosts {
  std::vector<double> forward, input, weight;  ///< indexed by stage
  /// Saved activations of a micro-batch on a stage between its forward and its backward, in any unit. Empty:
  /// 1 each.
  std::vector<double> activation;
  /// Seconds of a transfer from rank a to rank b, by a * ranks + b; a transfer between stages of one rank
  /// takes no time. Empty: none. Transfers of a link follow each other in the order of the sends.
  std::vector<double> transfer;
  /// Least seconds of an action, by rank and position as in Schedule::order; a rank's list may be empty.
  /// Empty: none.
  std::vector<std::vector<double>> least;
  /// Seconds saved by a pair of a forward of stage a and a backward of stage b, against the two one after the
  /// other, by a * stages + b. Empty: 0.
  std::vector<double> hidden;
  /// Seconds of a pair, overriding all of the above, by rank and position of its first action; 0: unknown. A
  /// rank's list may be empty. Empty: all unknown.
  std::vector<std::vector<double>> pairs;
  /// Earliest end of an action, by rank and position, from the begin of the schedule: the release time of
  /// inputs other than another stage's tensor (a layer's gathered weights), plus the rest of the action.
  /// Empty: none.
  std::vector<std::vector<double>> earliest_end;
  /// Seconds of the optimizer by rank, after the last rank's last action: the gradient norm needs all ranks.
  std::vector<double> optimizer;

  /// Equal costs for every stage.
  static StageCosts uniform(int stages, double forward = 1, double input = 1, double weight = 1);
};

struct Timing {
  /// Indexed by rank and position, as Schedule::order; the actions of a pair begin and end together.
  std::vector<std::vector<double>> start, end;
  double makespan = 0;         ///< end of the last action, without optimizer
  double step = 0;             ///< with optimizer
  std::vector<double> busy;    ///< for each rank: seconds within actions
  std::vector<double> waited;  ///< for each rank: part of it that waits for StageCosts::earliest_end
  /// For each rank: makespan - busy.
  std::vector<double> bubble;
  /// For each rank: idle seconds between its own first and last action, which the zero-bubble papers call the
  /// bubble. It excludes the skew of the ranks at both ends of a step, which only an optimizer that does not
  /// wait for all ranks can hide.
  std::vector<double> inner_bubble;
  double bubble_share = 0;  ///< share of ranks * makespan, 0 to 1
  /// For each rank: most micro-batches saved at once, over its stages (one chunk of one micro-batch is 1). An
  /// activation lives from the start of F to the end of B, or to the end of W if backward is split. It counts
  /// fully between I and W: a weight gradient needs every matmul's input and output gradient, at least as
  /// much as F saved.
  std::vector<int> peak_activations;
  /// Peak in the unit of StageCosts::activation.
  std::vector<double> peak_kept;
};

/// Lower bound, in seconds, of any schedule of these stages, without a simulation: a rank waits for the first
/// micro-batch, computes its own part of all, and the last gradient goes back through the stages before.
/// Transfers take no time in it.
double least_makespan(const std::vector<int>& rank_of_stage, const StageCosts& costs, int micros,
                      bool splits_backward);

/// Seconds of the action or pair that begins at `at` of an order, by the costs of its stages. A pair takes at
/// least as long as its longer action.
double seconds_at(const StageCosts& costs, const std::vector<Action>& order, size_t at);

/// Checks the schedule first (schedule.h); throws Error if it is incomplete or never ends.
Timing simulate(const Schedule& schedule, const StageCosts& costs);

}  // namespace ltrain::pipeline
