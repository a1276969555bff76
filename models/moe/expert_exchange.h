// Exchange of token rows with the ranks of their experts, and back (GShard's all-to-all, dropless: any number
// of rows). On two levels rows first go to the neighbour with the same index as their expert's rank among its
// own neighbours, and from there, in one message, to that rank (Tutel's 2DH, arXiv:2206.03382).
#pragma once
#include <algorithm>
#include <array>

#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/matmul/grouped/grouped_matmul.h"
#include "kernels/moe/sort_choices.h"
#include "models/layers/step.h"

namespace ltrain {

/// Distribution of the rows of one micro-batch, or of a slice of them; host data.
struct ExpertRowCounts {
  int64_t sorted = 0;                 ///< rows of this rank's tokens
  int64_t received = 0;               ///< rows of this rank's experts, from all ranks
  GroupRows groups;                   ///< rows of each of its experts
  std::vector<int64_t> send, arrive;  ///< to and from each rank of the expert group
  /// Copies from the order of arrival (by rank, then expert) to the order of experts; columns are set later.
  std::vector<CopyRectangle> parts;
  /// For one of several slices: copies from the order of this rank's sorted rows to the order in which its
  /// rows leave.
  std::vector<CopyRectangle> own;
  /// On two levels: counts for neighbours, and for the ranks with this rank's index among their neighbours.
  struct Level {
    std::vector<int64_t> send, arrive;
    std::vector<CopyRectangle> parts;  ///< into the order in which rows leave
  } near, far;
};

/// Copies of full rows of `cols` columns; `back`: the inverse.
std::vector<CopyRectangle> whole_rows(const std::vector<CopyRectangle>& parts, int64_t cols, bool back);

class ExpertExchange {
 public:
  static constexpr VaryingRows kRows{"exchange of experts"};
  /// `experts`: experts of the layer, on all ranks. `rows_each`: mean rows of a token; its most choices,
  /// except with expert choice.
  ExpertExchange(const Groups& groups, int64_t experts, int64_t rows_each)
      : groups_(groups), experts_(experts), rows_each_(rows_each) {}
  int64_t local_experts() const { return experts_ / groups_.expert.size(); }
  /// DispatchOptions::skew.
  void plan_at(double skew) { skew_ = skew; }
  /// Most rows for a rank's experts, with `tokens` tokens on each rank that choose `top_k` experts each; an
  /// expert takes `capacity` rows of a micro-batch (0: all).
  int64_t most_rows(int64_t tokens, int64_t top_k, int64_t capacity) const;
  /// Rows if all experts get the same number, rounded up.
  int64_t even_rows(int64_t tokens) const {
    const int64_t each = (tokens * rows_each_ + experts_ - 1) / experts_;
    return each * local_experts() * groups_.expert.size();
  }
  /// Most rows of a routing's tokens for all experts.
  int64_t most_sent(const Routing& routing, int64_t capacity) const {
    const int64_t choices = routing.slots.elements();
    return capacity > 0 ? std::min(choices, capacity * experts_) : choices;
  }
  /// Exchanges the counts of this rank's tokens and copies them to the host, which waits once: rows of each
  /// rank's tokens for each expert, (ranks, experts). On meta: planned counts, with `capacity` (0: unlimited)
  /// for each expert. Throws if the router's logits were not finite. `name`: name of the layer.
  std::vector<int64_t> counts_of_ranks(Step& step, const Routing& routing, int64_t capacity,
                                       const std::string& name) const;
  /// Layout that follows from the counts.
  ExpertRowCounts lay_out(const std::vector<int64_t>& all) const;
  /// Layout of each slice, with at most `most` rows for any rank (row_slices.h).
  std::vector<ExpertRowCounts> lay_out(const std::vector<int64_t>& all, int64_t most) const;
  /// Counts for a routing of all ranks' tokens to this rank's experts only, sorted for the experts of `here`.
  ExpertRowCounts count_here(Step& step, const Routing& routing, int64_t capacity, const std::string& name,
                             const ChosenExperts& here) const;
  /// Rows in flight on the group's stream. Sent rows and the buffers must live until finish.
  struct Flight {
    Tensor arrived;              ///< in the order of arrival
    std::array<Tensor, 3> held;  ///< buffers: first for the sent rows, then for rows that pass through
    AsyncHandle done;
    bool stays = false;  ///< keeps its memory for later flights, until release()
    bool lent = false;   ///< `arrived` belongs to the caller
    Tensor hold(Step& step, int which, const char* name, Shape shape) {
      if (!held[which].defined()) held[which] = step.temporary(name, shape);
      return held[which];
    }
  };
  /// True if a rank has one expert. Its rows arrive in its order, the order of the ranks: they are sent and
  /// received without a copy.
  bool straight() const { return local_experts() == 1; }
  /// Starts to send rows sorted by expert, for all ranks; they arrive in memory for `most` rows. `received`:
  /// destination of the rows, if it exists already.
  void dispatch_start(Step& step, const ExpertRowCounts& counts, Tensor sorted, int64_t most, Flight& flight,
                      Tensor received = {}) const;
  /// received = the rows.
  void dispatch_finish(Step& step, const ExpertRowCounts& counts, Tensor received, Flight& flight) const;
  /// For a straight flight without given memory: returns the rows, to be released.
  Tensor dispatch_finish(Step& step, Flight& flight) const;
  /// Sends outputs back: sorted = rows of this rank's tokens. `received` may be released at once; a straight
  /// flight takes ownership, and releases it at its end, or, if it stays, in release().
  void return_rows_start(Step& step, const ExpertRowCounts& counts, Tensor sorted, Tensor received,
                         Flight& flight) const;
  void return_rows_finish(Step& step, Tensor sorted, Flight& flight) const;
  static void release(Step& step, Flight& flight);
  /// Reinterprets rows that vary over ranks as slices of all ranks' rows, and back.
  void claim(Step& step, Tensor t, Placement from, Placement to) const;

 private:
  /// Ranks of `axes` with different tokens of the same samples.
  int64_t ranks_of_samples(AxisSet axes) const;
  /// Ends a flight: keeps its buffers for the next one, or releases them.
  static void end(Step& step, Flight& flight);
  bool two_levels() const { return groups_.expert_intra_node.size() > 1; }
  /// Planned rows of each expert, from a rank with `tokens` tokens.
  std::vector<int64_t> planned_counts(int64_t tokens, int64_t capacity) const;
  /// Throws if the last of a routing's counts names a token.
  void check_finite(int64_t token, const std::string& name) const;
  /// all: result of counts_of_ranks.
  int64_t rows_between(const std::vector<int64_t>& all, int64_t from, int64_t to) const;
  /// Most rows that pass through a neighbour if a rank sends `sent` and gets `most`.
  int64_t most_passing(int64_t sent, int64_t most) const {
    return std::min(sent * groups_.expert_intra_node.size(), most * groups_.expert_inter_node.size());
  }
  void lay_out_levels(ExpertRowCounts& counts, const std::vector<int64_t>& all) const;
  const Groups& groups_;
  int64_t experts_, rows_each_;
  double skew_ = 1;
};

}  // namespace ltrain
