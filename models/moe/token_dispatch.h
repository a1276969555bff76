// Dispatch of tokens to their experts, and combination of the outputs (Megatron-LM's token dispatcher): on
// one rank, by all-to-all between the ranks of the experts, or by gathering all their tokens.
#pragma once
#include <memory>

#include "kernels/moe/sort_choices.h"
#include "models/layers/step.h"
#include "models/moe/expert_exchange.h"

namespace ltrain {

struct DispatchOptions {
  bool gather = false;  ///< every rank gets all tokens and sums for all, instead of an all-to-all of rows
  int replicas = 0;     ///< most replicas of hot experts in a layer at once
  int chunks = 1;       ///< chunks of a micro-batch's tokens: one is exchanged while experts compute another
  bool balanced = false;  ///< for plans: memory for even routing only, not for the worst case
  /// For plans: factor of tokens for this rank's experts relative to even routing; other ranks' experts get
  /// the rest.
  double skew = 1;
  /// Row budget of a rank's experts, in even shares; 0: memory for all possible rows. Rows beyond it go in
  /// further slices, which backward exchanges again. Not with `gather`.
  double row_budget = 0;
};

/// State of one micro-batch, or of a chunk of its tokens, between forward and backward.
struct Dispatched {
  Routing routing;         ///< sorting of rows: of this rank's tokens, or of all ranks' tokens
  bool own_rows = false;   ///< slots, sources and counts belong to this object, otherwise to the router
  ExpertRowCounts counts;  ///< counts of all rows, or of those within the budget
  std::vector<ExpertRowCounts> beyond;  ///< counts of the slices beyond the budget
  bool budgeted = false;                ///< such slices are possible: memory is allocated for them
  int64_t most_sent = 0;                ///< most rows of the tokens
  Tensor out;                           ///< (choices, H) outputs of experts for routing's tokens
  Tensor weights;                       ///< gathered weights of all ranks

  // In flight, between a start and its finish.
  ExpertExchange::Flight flight;
  Tensor leaving;     ///< (most_sent, H) rows in the order in which they leave
  Tensor travelling;  ///< gradients of this rank's rows, sorted by expert

  size_t slices() const { return 1 + beyond.size(); }
  const ExpertRowCounts& slice(size_t i) const { return i == 0 ? counts : beyond[i - 1]; }
};

/// A range of a router's tokens.
struct TokenRange {
  int64_t first, tokens;
};

/// Call functions in the order of their declarations; several chunks of a micro-batch may be in flight. Only
/// one slice of a chunk is in flight at a time. Forward goes through slices from the last to the first, which
/// is kept; backward from the first to the last.
class TokenDispatch {
 public:
  /// top_k: most experts of a token; rows_each: as in ExpertExchange.
  TokenDispatch(const Groups& groups, int64_t experts, int64_t top_k, int64_t rows_each)
      : exchange_(groups, experts, rows_each), groups_(groups), experts_(experts), top_k_(top_k) {}
  virtual ~TokenDispatch() = default;
  /// Makes the dispatcher of the options; a single rank needs no choice.
  static std::unique_ptr<TokenDispatch> make(const Groups& groups, int64_t experts, int64_t top_k,
                                             int64_t rows_each, const DispatchOptions& options);
  /// Rows with memory.
  int64_t most_rows(int64_t tokens, int64_t capacity) const;
  /// Copies to the host the number of rows of `range`, at most `capacity` for an expert (0: all). Throws if
  /// the router's logits were not finite. `name`: name of the layer.
  virtual void count(Step& step, Dispatched& d, const Routing& routing, TokenRange range, int64_t capacity,
                     const std::string& name) const;
  /// Rows of each rank for each expert, of the full micro-batch (ExpertExchange::counts_of_ranks).
  std::vector<int64_t> count_all(Step& step, const Routing& routing, int64_t capacity,
                                 const std::string& name) const {
    return exchange_.counts_of_ranks(step, routing, capacity, name);
  }
  /// count() for the rows of some experts. `all`: result of count_all.
  virtual void count_some(Step& step, Dispatched& d, const Routing& routing, TokenRange range,
                          int64_t capacity, const std::string& name, const ChosenExperts& which,
                          std::vector<int64_t> all) const;
  /// Starts to send rows of `tokens` (T, H) to `rows` (most, H).
  virtual void start(Step& step, Dispatched& d, size_t slice, Tensor tokens, Tensor rows) const = 0;
  /// rows = rows of this rank's experts, sorted by expert.
  virtual void finish(Step& step, Dispatched& d, size_t slice, Tensor rows) const = 0;
  /// Memory for the experts' outputs of any slice: (most, H).
  virtual Tensor made(Step& step, Dispatched& d, int64_t most, int64_t columns) const = 0;
  /// Sends outputs back; `made` is consumed.
  virtual void return_rows_start(Step& step, Dispatched& d, size_t slice, Tensor made) const = 0;
  /// For slices other than the first.
  virtual void return_rows_finish(Step&, Dispatched&, size_t) const {}
  /// y: (T, H) = weighted sums; undefined if not needed.
  virtual void combine(Step& step, Dispatched& d, Tensor y) const = 0;

  /// Computes dweights, (T, k), and starts to send gradients of the first slice's outputs. Releases d.out.
  virtual void combine_backward_start(Step& step, Dispatched& d, Tensor dweights, Tensor dy,
                                      int64_t most) const = 0;
  /// For slices other than the first, after start() and finish() have fetched their rows again: starts to
  /// send the gradients of outputs, directly to `dmade` if straight.
  virtual void combine_backward_next(Step&, Dispatched&, size_t, int64_t, Tensor) const {}
  /// Gradients of outputs: (most, H), to be released by the caller. `dmade`: allocated by the first slice's
  /// call.
  virtual void combine_backward(Step& step, Dispatched& d, size_t slice, Tensor dweights, int64_t most,
                                Tensor& dmade) const = 0;
  /// Sends gradients of rows, (most, H), back; `drows` is consumed.
  virtual void permute_backward_start(Step& step, Dispatched& d, size_t slice, Tensor drows) const = 0;
  /// For slices other than the last.
  virtual void permute_backward_next(Step&, Dispatched&, size_t) const {}
  /// dx: (T, H) = sums of the gradients of rows.
  virtual void permute_backward(Step& step, Dispatched& d, Tensor dx) const = 0;

  /// Gives `d` its own tensors for sorting `tokens` tokens to `experts` experts.
  static void own_rows(Step& step, Dispatched& d, int64_t tokens, int64_t top_k, int64_t experts);
  static void release(Step& step, Dispatched& d);

 protected:
  ExpertExchange exchange_;
  const Groups& groups_;
  int64_t experts_, top_k_;

 private:
  /// Gives `d` the sorted choices of `range` for some experts.
  void sort_some(Step& step, Dispatched& d, const Routing& routing, TokenRange range,
                 const ChosenExperts& which) const;
  /// Fills counts from all ranks' rows, with `tokens` tokens on each rank.
  void lay_out(Dispatched& d, const std::vector<int64_t>& all, int64_t tokens, int64_t capacity) const;
  /// Rows of a rank with an even share.
  int64_t even_rows(int64_t tokens) const { return exchange_.even_rows(tokens); }
  bool balanced_ = false;
  double row_budget_ = 0;
};

}  // namespace ltrain
