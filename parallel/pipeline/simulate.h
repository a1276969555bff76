// When each action of a schedule starts and ends, how long ranks are idle, and what they must keep.
#pragma once
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace ltrain::pipeline {

/// What one micro-batch costs on each stage, in seconds or in any other unit. A whole backward costs
/// input + weight.
struct StageCosts {
  std::vector<double> forward, input, weight;  ///< by stage
  /// What a micro-batch keeps on a stage between its forward and its backward, in any unit. Empty: 1 each.
  std::vector<double> activation;
  /// Seconds that a tensor takes from rank a to rank b, by a * ranks + b; a rank's stages hand over to each
  /// other in no time. Empty: none. The transfers of a link follow each other in the order in which they are
  /// sent.
  std::vector<double> transfer;
  /// What an action takes at least, by rank and position as in Schedule::order; a rank's list may be empty.
  /// Empty: none.
  std::vector<std::vector<double>> least;
  /// By how much a forward of stage a beside a backward of stage b, as a pair, takes less than the two one
  /// after the other, by a * stages + b. Empty: by nothing.
  std::vector<double> hidden;
  /// What a pair takes, in the place of all that is said of it above, by rank and the position of its first;
  /// 0: not known. A rank's list may be empty. Empty: none is known.
  std::vector<std::vector<double>> pairs;
  /// When an action ends at the earliest, likewise by rank and position, counted from the schedule's begin:
  /// the release time of what it needs beside another stage's tensor (a layer's gathered weights), and what
  /// the action still does from there on. Empty: none.
  std::vector<std::vector<double>> earliest_end;
  /// Seconds of the optimizer by rank, after the last rank's last action: the gradient norm needs all of
  /// them.
  std::vector<double> optimizer;

  /// The same for every stage.
  static StageCosts uniform(int stages, double forward = 1, double input = 1, double weight = 1);
};

struct Timing {
  /// By rank and position, as Schedule::order; the two of a pair begin and end together.
  std::vector<std::vector<double>> start, end;
  double makespan = 0;         ///< from 0 to the end of the last action; without optimizer
  double step = 0;             ///< with it
  std::vector<double> busy;    ///< by rank: seconds within actions
  std::vector<double> waited;  ///< by rank: of them, for StageCosts::earliest_end
  /// By rank: makespan - busy.
  std::vector<double> bubble;
  /// By rank: idle seconds between its own first and last action. This is what the zero-bubble papers call
  /// the bubble: it leaves out the skew of the ranks at both ends of a step, which only an optimizer that
  /// does not wait for all ranks can hide.
  std::vector<double> inner_bubble;
  double bubble_share = 0;  ///< of ranks * makespan, 0 to 1
  /// By rank: the most micro-batches kept at once, counted over its stages (one chunk of one micro-batch is
  /// 1). An activation is kept from the start of F to the end of B, or to the end of W where backward is
  /// split. It counts whole between I and W: a weight's gradient needs every matmul's input and output
  /// gradient, which is not less than what F kept.
  std::vector<int> peak_activations;
  /// The same, in the unit of StageCosts::activation.
  std::vector<double> peak_kept;
};

/// Seconds that no schedule of these stages ends before, without simulating one: a rank waits for the first
/// micro-batch to reach it, computes its own part of all, and the last gradient goes back through the stages
/// before. Transfers take no time in it.
double least_makespan(const std::vector<int>& rank_of_stage, const StageCosts& costs, int micros,
                      bool splits_backward);

/// What the action or pair that begins at `at` of an order takes by the costs of its stages. A pair takes no
/// less than the longer one of its two.
double seconds_at(const StageCosts& costs, const std::vector<Action>& order, size_t at);

/// Checks the schedule first (schedule.h); throws Error for one that is incomplete or never ends.
Timing simulate(const Schedule& schedule, const StageCosts& costs);

}  // namespace ltrain::pipeline
