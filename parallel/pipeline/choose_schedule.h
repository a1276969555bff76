// schedule: auto. Every candidate is simulated; the fastest whose activations fit is taken.
//
// The choice follows from the costs to the last bit, so that ranks must not choose each on its own: one
// chooses, and the others read its order (schedule_csv.h).
#pragma once
#include <string>
#include <vector>

#include "parallel/pipeline/simulate.h"

namespace ltrain::pipeline {

/// What a model costs, layer by layer; a candidate's stages are made of it by split_layers.
struct LayerCosts {
  std::vector<double> forward, input, weight;  ///< by layer, for one micro-batch
  /// What a micro-batch keeps of each layer from forward to backward, in any unit (bytes). Empty: 1 each.
  std::vector<double> activation;
  /// On top of the first stage (embedding) and of the last (output layer and loss).
  double first_forward = 0, first_input = 0, first_weight = 0, first_activation = 0;
  double last_forward = 0, last_input = 0, last_weight = 0, last_activation = 0;
  /// What backward computes again of the first `recomputed_layers` layers of every stage, by layer, on top of
  /// `input`.
  std::vector<double> recompute;
  int64_t recomputed_layers = 0;
  /// Of a layer: by how much its forward beside its backward of another micro-batch, by turns, takes less
  /// than the two one after the other. 0: pairs of actions hide nothing.
  double hidden = 0;
  std::vector<double> transfer;   ///< as StageCosts::transfer
  std::vector<double> optimizer;  ///< as StageCosts::optimizer
  int layers() const { return static_cast<int>(forward.size()); }
};

/// Layers by stage: the given counts, or (empty) the split whose largest forward + backward is least; where
/// ranks hold several stages, with layers moved so that the ranks cost alike.
struct StagedCosts {
  std::vector<int> layers;
  StageCosts costs;
};
StagedCosts stage_costs(const LayerCosts& model, const std::vector<int>& rank_of_stage,
                        const std::vector<int>& counts = {});

struct Candidate {
  std::string name;
  int chunks = 1;
  std::string refused;  ///< "" or why it is out: a rule, or a rank whose activations do not fit
  double step = 0;      ///< seconds, with the optimizer; 0 when a rule refused it
  double bubble_share = 0;
  double peak_kept = 0;        ///< of the rank that keeps the most
  bool weights_moved = false;  ///< its W actions were placed by cost: fill_weights.h
  bool chosen = false;
};

struct Choice {
  Schedule schedule;
  StagedCosts staged;
  Timing timing;
  std::vector<Candidate> tried;  ///< all, fastest first, the refused ones last
};

struct ChoiceOptions {
  /// By rank: the most it may keep, in the unit of LayerCosts::activation. Empty: no limit.
  std::vector<double> limit;
  /// Chunks of interleaved up to this are tried, as far as the layers reach.
  int most_chunks = 4;
  /// Layers by stage for candidates with that number of stages; others are split by cost.
  std::vector<int> counts;
  /// Schedules to leave out ("zb-h1", ...): what the caller cannot run.
  std::vector<std::string> without;
  bool pairs = false;  ///< of those that are made for them, by turns
};

/// Among equally fast ones the one that keeps less, then the first of schedules(). Throws Error (usage), with
/// the table, when none is left.
Choice choose_schedule(const LayerCosts& model, int ranks, int micros, const ChoiceOptions& options = {});

/// The candidates as a table.
std::string choice_table(const std::vector<Candidate>& tried);

}  // namespace ltrain::pipeline
