// Losses of preference pairs from sums of log-probabilities, and their gradients.
//
// A *text* is a run of rows of a micro-batch; texts 2k and 2k + 1 are the chosen and the rejected one of pair
// k. With a labelled loss they are the text of example k, which has a label, and its prompt with another
// example's completion, whose sums estimate the divergence of the policy from the reference.
#pragma once
#include "kernels/loss/preference_loss.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Sums over the pairs of a step: PreferenceTotals::count values.
struct PreferenceTotals {
  enum : int {
    loss,
    chosen_tokens_loss,
    chosen_reward,
    rejected_reward,
    correct,
    chosen,
    rejected,
    divergence,  ///< kto: sum over mismatched texts of policy - reference
    desirable,   ///< labelled losses: number of examples with that label
    count
  };
};

/// out[r] = log p(targets[r]), 0 where the target is negative. out: (R) f64; stats: (ranks * R, 3), those of
/// cross_entropy_stats of all ranks.
void row_log_probabilities(Stream& s, Tensor out, Tensor stats, Tensor targets);

/// sums[t] = {sum of the values, number of rows} over rows r with texts[r] == t and targets[r] >= 0. Texts
/// without rows keep their sums. sums: (T, 2) f64; values: (R) f64; texts, targets: (R) i32. Rows of a text
/// are consecutive.
void sum_texts(Stream& s, Tensor sums, Tensor values, Tensor texts, Tensor targets);

/// totals += sums over the pairs that have tokens, in order of the pairs, if `adds`. weights[t] = minus the
/// gradient of (loss of the pair + chosen_weight * cross-entropy of the chosen text) with respect to the sum
/// of text t. totals: (count) f64; weights: (T) f64; sums: (T, 2) f64; reference: (T) f64; labels: (T / 2)
/// i32, 1 for a desirable text, with a labelled loss, else undefined. `values`: (R) f64, rows from which
/// `sums` were made, for placements.
void preference_pairs(Stream& s, Tensor totals, Tensor weights, Tensor sums, Tensor reference, Tensor labels,
                      Tensor values, const PreferenceLoss& loss, double chosen_weight, bool adds);

LT_KERNEL(row_log_probabilities, DType t, double* out, const void* stats, const int32_t* targets, int ranks,
          int64_t rows)
LT_KERNEL(sum_texts, double* sums, const double* values, const int32_t* texts, const int32_t* targets,
          int64_t rows)
LT_KERNEL(preference_pairs, double* totals, double* weights, const double* sums, const double* reference,
          const int32_t* labels, int64_t pairs, PreferenceLoss loss, double chosen_weight, bool adds)

}  // namespace ltrain
