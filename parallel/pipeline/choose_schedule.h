// schedule: auto. Simulates every candidate and takes the fastest one with activations that fit.
//
// The choice depends on the last bit of the costs. Ranks must therefore not choose separately: one rank
// chooses, and the others read its order (schedule_csv.h).
#pragma once
#include <string>
#include <vector>

#include "parallel/pipeline/simulate.h"

namespace ltrain::pipeline {

/// Costs of a model, layer by layer. split_layers makes the stages of a candidate from them.
struct LayerCosts {
  std::vector<double> forward, input, weight;  ///< indexed by layer, for one micro-batch
  /// Saved activations of each layer for one micro-batch, in any unit (bytes). Empty: 1 each.
  std::vector<double> activation;
  /// Extra costs of the first stage (embedding) and of the last (output layer and loss).
  double first_forward = 0, first_input = 0, first_weight = 0, first_activation = 0;
  double last_forward = 0, last_input = 0, last_weight = 0, last_activation = 0;
  /// Recomputation in backward for the first `recomputed_layers` layers of every stage, by layer, in addition
  /// to `input`.
  std::vector<double> recompute;
  int64_t recomputed_layers = 0;
  /// Seconds saved for each layer by running its forward interleaved with its backward of another
  /// micro-batch, instead of one after the other. 0: pairs save nothing.
  double hidden = 0;
  std::vector<double> transfer;   ///< StageCosts::transfer
  std::vector<double> optimizer;  ///< StageCosts::optimizer
  int layers() const { return static_cast<int>(forward.size()); }
};

/// Layers by stage: the given counts, or (empty) the split with the least largest forward + backward. If
/// ranks hold several stages, layers are moved to balance the ranks.
struct StagedCosts {
  std::vector<int> layers;
  StageCosts costs;
};
StagedCosts stage_costs(const LayerCosts& model, const std::vector<int>& rank_of_stage,
                        const std::vector<int>& counts = {});

struct Candidate {
  std::string name;
  int chunks = 1;
  std::string refused;  ///< "", or the reason: a rule, or a rank whose activations do not fit
  double step = 0;      ///< seconds, with the optimizer; 0 if a rule refused it
  double bubble_share = 0;
  double peak_kept = 0;        ///< largest peak over ranks
  bool weights_moved = false;  ///< W actions were placed by cost: fill_weights.h
  bool chosen = false;
};

struct Choice {
  Schedule schedule;
  StagedCosts staged;
  Timing timing;
  std::vector<Candidate> tried;  ///< all candidates, fastest first, refused ones last
};

struct ChoiceOptions {
  /// For each rank: limit of saved activations, in the unit of LayerCosts::activation. Empty: no limit.
  std::vector<double> limit;
  /// Largest number of interleaved chunks to try, if there are enough layers.
  int most_chunks = 4;
  /// Layers by stage for candidates with that number of stages; other candidates are split by cost.
  std::vector<int> counts;
  /// Schedules to skip ("zb-h1", ...), because the caller cannot run them.
  std::vector<std::string> without;
  bool pairs = false;  ///< run interleaved pairs in schedules made for them
};

/// Chooses a schedule. Among equally fast ones: the one with the least activations, then the first of
/// schedules(). Throws Error (usage), with the table, if none is left.
Choice choose_schedule(const LayerCosts& model, int ranks, int micros, const ChoiceOptions& options = {});

/// Table of the candidates.
std::string choice_table(const std::vector<Candidate>& tried);

}  // namespace ltrain::pipeline
