// How tokens are dispatched to their experts and what the experts made is combined (Megatron-LM's token
// dispatcher): on one rank, by all-to-all between the ranks of the experts, or by gathering all their tokens.
#pragma once
#include <memory>

#include "kernels/moe/sort_choices.h"
#include "models/layers/step.h"
#include "models/moe/expert_exchange.h"

namespace ltrain {

struct DispatchOptions {
  bool gather = false;    ///< every rank gets all tokens and sums for all, instead of an all-to-all of rows
  int replicas = 0;       ///< most replicas of hot experts on all ranks that a layer has at once
  int chunks = 1;         ///< parts of a micro-batch's tokens: one travels while experts work on another
  bool balanced = false;  ///< for plans: memory for even routing alone, not for the worst that can come
  /// For plans: tokens choose experts of this rank so many times as often as even routing does; the other
  /// ranks' experts have the rest.
  double skew = 1;
  /// Rows that a rank's experts have memory for, in even shares; 0: all that can come. What comes beyond goes
  /// in further slices, whose rows backward gets again. Not with `gather`.
  double row_budget = 0;
};

/// Of one micro-batch, or of a part of its tokens, between forward and backward.
struct Dispatched {
  Routing routing;         ///< what rows are sorted by: of the tokens, or of those of all ranks
  bool own_rows = false;   ///< its slots, sources and counts belong to this; else they are the router's
  ExpertRowCounts counts;  ///< of all rows; where there is a budget, of those within it
  std::vector<ExpertRowCounts> beyond;  ///< of the slices beyond the budget
  bool budgeted = false;                ///< there may be such slices: memory is as if there were
  int64_t most_sent = 0;                ///< rows that the tokens can make
  Tensor out;                           ///< (choices, H) what experts made of routing's tokens
  Tensor weights;                       ///< those of all ranks, gathered

  // Under way, between a start and what ends it.
  ExpertExchange::Flight flight;
  Tensor leaving;     ///< (most_sent, H) rows in the order in which they leave
  Tensor travelling;  ///< gradients of this rank's rows, sorted by expert

  size_t slices() const { return 1 + beyond.size(); }
  const ExpertRowCounts& slice(size_t i) const { return i == 0 ? counts : beyond[i - 1]; }
};

/// A part of a router's tokens.
struct TokenRange {
  int64_t first, tokens;
};

/// Calls in the order of the declarations; several parts of a micro-batch may be under way. Of the slices of
/// a part one is, from its start to a finish: forward goes through them from the last to the first, which is
/// what is kept, and backward from the first to the last.
class TokenDispatch {
 public:
  /// top_k: most experts of a token; rows_each: of ExpertExchange.
  TokenDispatch(const Groups& groups, int64_t experts, int64_t top_k, int64_t rows_each)
      : exchange_(groups, experts, rows_each), groups_(groups), experts_(experts), top_k_(top_k) {}
  virtual ~TokenDispatch() = default;
  /// The way of the options; on one rank there is nothing to choose.
  static std::unique_ptr<TokenDispatch> make(const Groups& groups, int64_t experts, int64_t top_k,
                                             int64_t rows_each, const DispatchOptions& options);
  /// Rows that there is memory for.
  int64_t most_rows(int64_t tokens, int64_t capacity) const;
  /// The host learns how many rows of `range` come, of which an expert takes `capacity` (0: all). Throws when
  /// the router's logits were not finite. `name`: of the layer.
  virtual void count(Step& step, Dispatched& d, const Routing& routing, TokenRange range, int64_t capacity,
                     const std::string& name) const;
  /// Rows of each rank for each expert, of the whole micro-batch (ExpertExchange::counts_of_ranks).
  std::vector<int64_t> count_all(Step& step, const Routing& routing, int64_t capacity,
                                 const std::string& name) const {
    return exchange_.counts_of_ranks(step, routing, capacity, name);
  }
  /// As count(), of the rows of some experts. `all`: of count_all.
  virtual void count_some(Step& step, Dispatched& d, const Routing& routing, TokenRange range,
                          int64_t capacity, const std::string& name, const ChosenExperts& which,
                          std::vector<int64_t> all) const;
  /// tokens: (T, H), whose rows get under way to `rows`: (most, H).
  virtual void start(Step& step, Dispatched& d, size_t slice, Tensor tokens, Tensor rows) const = 0;
  /// rows := those of this rank's experts, sorted by them.
  virtual void finish(Step& step, Dispatched& d, size_t slice, Tensor rows) const = 0;
  /// Where experts write what they make of any slice: (most, H).
  virtual Tensor made(Step& step, Dispatched& d, int64_t most, int64_t columns) const = 0;
  /// Rows go back; `made` is done with.
  virtual void give_back_start(Step& step, Dispatched& d, size_t slice, Tensor made) const = 0;
  /// Of slices but the first.
  virtual void give_back_finish(Step&, Dispatched&, size_t) const {}
  /// y: (T, H) := the weighted sums; undefined where nobody needs them.
  virtual void combine(Step& step, Dispatched& d, Tensor y) const = 0;

  /// Gradients of the weights, (T, k), and of what experts made get under way, the first slice's. Releases
  /// d.out.
  virtual void combine_backward_start(Step& step, Dispatched& d, Tensor dweights, Tensor dy,
                                      int64_t most) const = 0;
  /// Of slices but the first, whose rows start() and finish() have brought again: what experts made gets
  /// under way, to `dmade` where it travels straight.
  virtual void combine_backward_next(Step&, Dispatched&, size_t, int64_t, Tensor) const {}
  /// The latter: (most, H), to be released. `dmade`: made by the first slice's call.
  virtual void combine_backward(Step& step, Dispatched& d, size_t slice, Tensor dweights, int64_t most,
                                Tensor& dmade) const = 0;
  /// Gradients of rows, (most, H), go back; `drows` is done with.
  virtual void permute_backward_start(Step& step, Dispatched& d, size_t slice, Tensor drows) const = 0;
  /// Of slices but the last.
  virtual void permute_backward_next(Step&, Dispatched&, size_t) const {}
  /// dx: (T, H) := their sums.
  virtual void permute_backward(Step& step, Dispatched& d, Tensor dx) const = 0;

  /// Gives `d` tensors of its own that sort `tokens` tokens to `experts` experts.
  static void own_rows(Step& step, Dispatched& d, int64_t tokens, int64_t top_k, int64_t experts);
  static void release(Step& step, Dispatched& d);

 protected:
  ExpertExchange exchange_;
  const Groups& groups_;
  int64_t experts_, top_k_;

 private:
  /// Gives `d` the choices of `range` for some experts, sorted.
  void sort_some(Step& step, Dispatched& d, const Routing& routing, TokenRange range,
                 const ChosenExperts& which) const;
  /// Fills counts of all ranks' rows, of `tokens` tokens a rank.
  void lay_out(Dispatched& d, const std::vector<int64_t>& all, int64_t tokens, int64_t capacity) const;
  /// Of a rank that gets an even share.
  int64_t even_rows(int64_t tokens) const { return exchange_.even_rows(tokens); }
  bool balanced_ = false;
  double row_budget_ = 0;
};

}  // namespace ltrain
