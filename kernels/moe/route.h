// Router of an MoE model: the experts of each token, their weights, and the positions of its rows among the
// rows sorted by expert. Scores are computed in the dtype of the logits, f32 (f64 for f64).
#pragma once
#include "base/enum_names.h"
#include "kernels/tensor/host_device.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/row_random.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Selection of experts or tokens. top_k: each token takes its k best experts. gshard_top2: the best, and the
/// second with probability min(1, its weight / threshold), which is 1 for a threshold of 0 (GShard,
/// arXiv:2006.16668, threshold 0.5). expert_choice: each expert takes its `capacity` best tokens, ties to the
/// lowest token (arXiv:2202.09368); then top_k is the number of experts, and weights are plain scores. top_p:
/// the fewest best experts whose scores, divided by the sum over all experts, reach `threshold`; at most
/// top_k (arXiv:2403.07652). Weights are made of the scores of these alone.
enum class Selection : uint8_t { top_k, gshard_top2, expert_choice, top_p };
LT_ENUM_NAMES(Selection, {Selection::top_k, "top_k"}, {Selection::gshard_top2, "gshard"},
              {Selection::expert_choice, "expert_choice"}, {Selection::top_p, "top_p"});

/// Choices dropped beyond a capacity: those with the least weight, those of the last tokens, or second
/// choices before first ones and then the last tokens' (GShard). Ties drop the last token.
enum class Drop : uint8_t { least_weight, last_token, later_choice };
LT_ENUM_NAMES(Drop, {Drop::least_weight, "probability"}, {Drop::last_token, "position"},
              {Drop::later_choice, "choice"});

/// Options of the choice. The score of expert i is softmax(logits)_i over all experts, or sigmoid(logit_i).
/// The k best by score + bias (without a bias by logit) are chosen, ties to the lowest index. Weights are
/// scores without the bias, divided by their sum with `renormalize`, times `scale`. With `top_k_first` the
/// softmax is over the chosen logits only.
struct RouteArgs {
  int64_t experts = 1, top_k = 1;
  /// The last experts, which are the identity (LongCat-Flash, arXiv:2509.01322): they are chosen as the
  /// others are, and have no rows.
  int64_t zero_experts = 0;
  bool sigmoid = false, top_k_first = false, renormalize = true;
  double scale = 1;
  /// Experts are chosen from the `kept_groups` best of `groups` neighbouring groups. A group's value is its
  /// best expert's; with a bias, or sigmoid scores, the sum of its best two (DeepSeek-V2, V3).
  int64_t groups = 1, kept_groups = 1;
  int64_t capacity = 0;            ///< most rows of an expert; 0: unlimited
  Drop drop = Drop::least_weight;  ///< rule for rows beyond it
  Selection selection = Selection::top_k;
  double threshold = 0;  ///< gshard_top2, top_p
  RowRandomArgs random;  ///< gshard_top2: random numbers of the tokens; set by route_forward
  /// top_k: Routing::experts holds the experts of each token, in any order; a token whose first one is
  /// negative chooses its own. Weights are made of the scores of these experts (R3, arXiv:2510.11370).
  bool given = false;

  /// Number of experts that have rows.
  LT_HD int64_t real_experts() const { return experts - zero_experts; }
};

/// Result of the router for T tokens and E experts, of which R are real (not the identity). Assignment
/// t * k + j is the j-th choice of token t.
struct Routing {
  Tensor logits;  ///< (T, E) f32 or f64, input
  Tensor norm;    ///< (T, 2), dtype of the logits: logsumexp of the logits; sum of all scores (1 for softmax)
  Tensor experts;  ///< (T, k) i32, best first; -1 - e: expert e was considered, but not chosen; see `given`
  Tensor weights;  ///< (T, k), dtype of the logits
  Tensor slots;    ///< (T, k) i32: row of the assignment, sorted by expert, then token; -1: none
  Tensor sources;  ///< (T * k, or E * capacity with expert choice) i32: assignment of each row
  Tensor counts;   ///< (R + 1) i64: rows of each real expert; first token with a non-finite logit, or -1
  /// (2 G + 1, E) f64, for each of G runs of `run` tokens: choices of expert i, dropped ones included (G
  /// rows); sum of its scores, each token's divided by their sum (G rows). The last row has the counts; those
  /// of zero experts are not used.
  Tensor statistics;
  int64_t run = 0;
  // With zero experts only: the token's part in its output, as a routing of one choice a token.
  Tensor identity_weights;  ///< (T, 1), dtype of the logits: sum of the weights of chosen zero experts
  Tensor identity_rows;     ///< (T, 1) i32: the token
};
/// Fills all fields except the logits. bias: (E), dtype of the logits, or undefined. random: for the rows,
/// with gshard_top2.
void route_forward(Stream& s, const Routing& r, Tensor bias, const RouteArgs& args,
                   const RowRandom& random = {});

/// dlogits (T, E) = gradient of sum_a dweights_a weights_a + sum_(t,i) table[t / run, i] score_(t,i) +
/// z_coeff sum_t logsumexp_t^2 + entropy_coeff sum_t H_t, where score is divided by the token's sum of
/// scores, and H is the entropy of these. table: (G, E) f64, or undefined. Weights of dropped assignments
/// count in sums of weights; their own dweights must be 0. didentity (T, 1), with zero experts: gradient of
/// identity_weights, in the place of dweights of these.
void route_backward(Stream& s, Tensor dlogits, Tensor dweights, const Routing& r, Tensor table,
                    double z_coeff, const RouteArgs& args, double entropy_coeff = 0, Tensor didentity = {});
/// total[0] += scale * sum of logsumexp^2. total: (1) f64.
void add_z_loss(Stream& s, Tensor total, const Routing& r, double scale);
/// total[0] += scale * sum over tokens of H = -sum_i P_i log P_i, P: scores divided by their sum. total: (1)
/// f64.
void add_router_entropy(Stream& s, Tensor total, const Routing& r, const RouteArgs& args, double scale);

struct RoutePointers {
  const void *logits, *bias;
  void *norm, *weights;
  int32_t *experts, *slots, *sources;
  int64_t* counts;
  double* statistics;
  int64_t tokens, run;
  void* identity_weights = nullptr;
  int32_t* identity_rows = nullptr;
};
/// Gradients and coefficients of route_backward.
struct RouteGradients {
  const void* weights;
  const void* identity;  ///< null without zero experts
  const double* table;   ///< or null
  double z, entropy;
};
LT_KERNEL(route_forward, DType t, RoutePointers p, RouteArgs args)
LT_KERNEL(route_backward, DType t, void* dlogits, RouteGradients d, RoutePointers p, RouteArgs args)
LT_KERNEL(add_z_loss, DType t, double* total, const void* norm, int64_t tokens, double scale)
LT_KERNEL(add_router_entropy, DType t, double* total, RoutePointers p, RouteArgs args, double scale)

}  // namespace ltrain
