// Preference training in the step program: counts, results, and the pass of a reference model.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/loss/preference.h"
#include "models/layers/step.h"
#include "runtime/data/batch_loader.h"

namespace ltrain {

/// Means over the pairs of a step or an evaluation.
struct PreferenceResult {
  double loss = 0;       ///< with the sft term
  double pair_loss = 0;  ///< without it
  double sft_loss = 0;   ///< mean over the counted tokens of chosen texts
  double chosen_reward = 0, rejected_reward = 0;
  double accuracy = 0;              ///< share of pairs whose chosen text has the larger reward
  double chosen = 0, rejected = 0;  ///< sums of log-probabilities
  int64_t pairs = 0;
  double divergence = 0;  ///< kto: estimate that the losses used
  int64_t desirable = 0;  ///< kto: examples with that label; means of rewards and texts are over each label
};

struct PairCounts {
  int64_t pairs = 0, chosen_tokens = 0;
};
/// Adds the pairs of a batch of this rank. Pairs are counted by context rank 0 alone, tokens by the rank that
/// has them.
void count_pairs(PairCounts& counts, const data::Batch& batch, int context_rank);
/// PairBatch::chosen_weight for global counts.
double chosen_weight(const PreferenceSettings& settings, const PairCounts& counts);
/// kto: estimate of the policy's divergence from the reference over `examples`, at least 0.
double divergence_of(std::span<const double> totals, int64_t examples);
/// `totals`: PreferenceTotals of the step. `counts`: global.
PreferenceResult preference_result(const PreferenceSettings& settings, const PairCounts& counts,
                                   std::span<const double> totals);
/// Bytes of a staging slot for the pairs of a micro-batch, or for their sums.
int64_t pair_slot_bytes(int64_t rows, int64_t micro_batch, int64_t seq_length);
/// Places the pairs of a loaded batch on meta.
void place_pairs(Stream& s, const PairBatch& pairs);

}  // namespace ltrain
