// Router of one MoE layer: logits, choices, balance losses, and their gradients.
#pragma once
#include "kernels/moe/balance.h"
#include "kernels/moe/token_rows.h"
#include "models/layers/model_config.h"
#include "models/layers/step.h"

namespace ltrain {

/// Number of a router's sums over a step: choices of each expert, rows of each (without dropped ones), the
/// balance loss, the z-loss, rows beyond the row budget of their rank, slices for these: mean over a
/// step's micro-batches and their ranks, with entropy_coeff the entropy loss, and with a freeze_step the loss
/// of distillation.
inline int64_t moe_sums(const MoeConfig& m) {
  return 2 * m.router_outputs() + 4 + (m.entropy_coeff > 0) + (m.freeze_step > 0);
}

class Router {
 public:
  struct Saved {
    Routing routing;
    Tensor table;  ///< (G, E) f64: gradient of the balance loss with respect to a token's scores
  };
  /// `rows_cut`: tensor ranks have their own rows. `layer`: index in the full model, for MicroBatch::experts.
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config,
               const std::string& name, int64_t layer, bool rows_cut);
  /// Most rows of one expert in a micro-batch of which this rank has `tokens` tokens, in training or not; 0:
  /// unlimited.
  int64_t capacity(const Groups& groups, int64_t tokens, bool training) const;
  /// Adds rows for this rank's experts beyond the budget, in a micro-batch, to the sums.
  void add_up_beyond(Step& step, const MicroBatch& mb, const Saved& saved, int64_t rows,
                     int64_t slices) const;
  /// x: (tokens, H). Fills `saved`; the host may not read it yet.
  void forward(Step& step, const MicroBatch& mb, Tensor x, Saved& saved) const;
  /// For a router of one expert: only the scores, without balance.
  void forward_gate(Step& step, Tensor x, Saved& saved) const {
    score(step, x, saved);
    choose(step, {}, {}, x.shape[0], {}, saved);
  }
  /// dx: (some of the rows, H), from row `first_row` on, = the router's part of their gradient; adds to its
  /// weight's gradient. dweights: full, not a summand. didentity: (rows, 1), with zero experts, likewise.
  void backward(Step& step, const MicroBatch& mb, Tensor dx, int64_t first_row, Tensor dweights, Tensor x,
                Saved& saved, Tensor didentity = {}) const;
  static void release(Step& step, Saved& saved);

 private:
  void score(Step& step, Tensor x, Saved& saved) const;
  void choose(Step& step, const MicroBatch& mb, Tensor bias, int64_t run, const RowRandom& random,
              Saved& saved) const;
  /// Drops choices beyond a capacity that is shared with other ranks' tokens.
  void drop_beyond(Step& step, const MicroBatch& mb, const RouteArgs& args, Routing& r) const;
  /// Arguments of the kernel for this rank's tokens.
  RouteArgs args(const Step& step, int64_t tokens) const;
  bool jitters(const Step& step) const { return jitter_ > 0 && step.training; }
  /// Random numbers for the router's input rows, or some of them.
  RowRandom random(const Step& step, const MicroBatch& mb, int64_t rows, const char* what) const;
  /// The micro-batch's row that the router's first one is.
  int64_t first_row(const Step& step, const MicroBatch& mb, int64_t rows) const {
    return rows == mb.rows() ? 0 : step.row_map(mb).first_row;
  }
  // ---- choices by token ids (token_router.cpp) ----
  bool distils() const { return scores_ >= 0; }
  void declare_by_token(ParameterStore& store, const ModelConfig& config, const std::string& name);
  /// Tokens of the router's rows.
  Tensor tokens(Step& step, const MicroBatch& mb, int64_t rows) const;
  /// experts = the table's experts of the rows' tokens.
  void look_up(Step& step, const MicroBatch& mb, Tensor experts) const;
  /// Writes the table of this layer, from the learned scores of all token ids.
  void freeze(Step& step, const MicroBatch& mb) const;
  /// Scores of the rows' tokens, (rows, E) of stat_type: a temporary.
  Tensor token_scores(Step& step, const MicroBatch& mb, int64_t rows) const;
  /// Adds the cross-entropy of the j-th experts, times `scale`, to `loss`, and to the gradient if defined.
  void cross_entropies(Step& step, const Routing& r, Tensor scores, Tensor loss, Tensor dscores,
                       double scale) const;
  void distil(Step& step, const MicroBatch& mb, const Routing& r) const;
  void distil_backward(Step& step, const MicroBatch& mb, const Routing& r) const;
  /// Factor of the mean over choices, from sums of this rank's.
  double of_choice(const Step& step, const MicroBatch& mb, int64_t rows) const {
    return mb.by_token.learns / (all_tokens(step, rows) * static_cast<double>(mb.micros * args_.top_k));
  }

  bool balances() const { return balance_ != BalanceLoss::none && coeff_ > 0; }
  /// Ranks with different tokens of this rank's samples.
  int64_t ranks_of_samples(const Groups& groups) const {
    return groups.context.size() * (rows_cut_ ? groups.tensor.size() : 1);
  }
  /// Tokens of the micro-batch over all ranks with different ones.
  double all_tokens(const Step& step, int64_t tokens) const;
  void balance(Step& step, const MicroBatch& mb, Saved& saved) const;
  /// kind hf: balance over the tokens of all layers together. The loss is added in the last layer.
  void balance_layers(Step& step, const MicroBatch& mb, const Routing& r) const;
  /// `all`: this rank's statistics, summed over ranks in place.
  void sum_statistics(Step& step, Tensor all, bool by_sequence) const;
  bool of_all_layers() const { return balance_ == BalanceLoss::hf; }
  void weight_backward(Step& step, const MicroBatch& mb, Tensor dlogits, Tensor x) const;
  void add_up(Step& step, const MicroBatch& mb, const Saved& saved) const;
  Tensor sums(const MicroBatch& mb, int64_t begin, int64_t count) const;
  int weight_ = -1, bias_ = -1, scores_ = -1;
  bool by_token_ = false;
  int64_t vocab_ = 0;
  RouteArgs args_;
  BalanceLoss balance_ = BalanceLoss::none;
  std::string place_;
  double coeff_ = 0, z_coeff_ = 0, entropy_coeff_ = 0, capacity_factor_ = 0, eval_capacity_factor_ = 0,
         jitter_ = 0;
  int64_t layer_ = 0;
  /// indices of layers with experts, and their number
  int64_t first_layer_ = -1, last_layer_ = -1, layers_ = 0;
  bool rows_cut_ = false;
};

}  // namespace ltrain
