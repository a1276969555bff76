// Rows of tokens to the ranks of their experts, and back (GShard's all-to-all, dropless: as many rows as
// come). On two levels rows first go to the neighbour that has the place of their expert's rank among its own
// neighbours, and from there, all in one message, to that rank (Tutel's 2DH, arXiv:2206.03382).
#pragma once
#include <algorithm>
#include <array>

#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/matmul/grouped_matmul.h"
#include "kernels/moe/sort_choices.h"
#include "models/layers/step.h"

namespace ltrain {

/// How the rows of one micro-batch, or of a slice of them, are spread; numbers that the host has.
struct ExpertRowCounts {
  int64_t sorted = 0;                 ///< rows of this rank's tokens
  int64_t received = 0;               ///< rows of this rank's experts, from all ranks
  GroupRows groups;                   ///< by its experts
  std::vector<int64_t> send, arrive;  ///< to and from each rank of the expert group
  /// From the order of arrival (by rank, then expert) to that of experts; columns are left open.
  std::vector<CopyRectangle> parts;
  /// Of one of several slices: from the order of this rank's sorted rows to that in which its rows leave.
  std::vector<CopyRectangle> own;
  /// On two levels: likewise of the neighbours, and of those that have this rank's place among theirs.
  struct Level {
    std::vector<int64_t> send, arrive;
    std::vector<CopyRectangle> parts;  ///< into the order in which rows leave
  } near, far;
};

/// The same of rows of `cols` columns, or the way back.
std::vector<CopyRectangle> whole_rows(const std::vector<CopyRectangle>& parts, int64_t cols, bool back);

class ExpertExchange {
 public:
  static constexpr VaryingRows kRows{"exchange of experts"};
  /// `experts`: of the layer, on all ranks. `rows_each`: that a token makes in the mean, which is what it
  /// chooses at most but where experts choose.
  ExpertExchange(const Groups& groups, int64_t experts, int64_t rows_each)
      : groups_(groups), experts_(experts), rows_each_(rows_each) {}
  int64_t local_experts() const { return experts_ / groups_.expert.size(); }
  /// DispatchOptions::skew.
  void plan_at(double skew) { skew_ = skew; }
  /// Most rows that can come to a rank's experts, of `tokens` tokens a rank that choose `top_k` experts each,
  /// of which one takes `capacity` of a micro-batch (0: all).
  int64_t most_rows(int64_t tokens, int64_t top_k, int64_t capacity) const;
  /// Rows that come when all experts get as many, rounded up.
  int64_t even_rows(int64_t tokens) const {
    const int64_t each = (tokens * rows_each_ + experts_ - 1) / experts_;
    return each * local_experts() * groups_.expert.size();
  }
  /// Most rows that the tokens of a routing make for all experts.
  int64_t most_sent(const Routing& routing, int64_t capacity) const {
    const int64_t choices = routing.slots.elements();
    return capacity > 0 ? std::min(choices, capacity * experts_) : choices;
  }
  /// Counts of this rank's tokens are exchanged and become known to the host, which waits once: rows of each
  /// rank's tokens for each expert, (ranks, experts). On meta: planned ones, of which each expert takes
  /// `capacity` (0: all). Throws when the router's logits were not finite. `name`: of the layer.
  std::vector<int64_t> counts_of_ranks(Step& step, const Routing& routing, int64_t capacity,
                                       const std::string& name) const;
  /// What follows from them.
  ExpertRowCounts lay_out(const std::vector<int64_t>& all) const;
  /// Of each slice of at most `most` rows for any rank (row_slices.h).
  std::vector<ExpertRowCounts> lay_out(const std::vector<int64_t>& all, int64_t most) const;
  /// Of a routing of all ranks' tokens to this rank's experts alone, sorted for those of `here`.
  ExpertRowCounts count_here(Step& step, const Routing& routing, int64_t capacity, const std::string& name,
                             const ChosenExperts& here) const;
  /// Rows under way on the group's stream. What travels and what it passes through must live until finish.
  struct Flight {
    Tensor arrived;              ///< in the order of arrival
    std::array<Tensor, 3> held;  ///< what rows pass through: first as many as travel, then those that pass
    AsyncHandle done;
    bool stays = false;  ///< its memory serves the flights that follow, until release()
    bool lent = false;   ///< arrived is somebody else's
    Tensor hold(Step& step, int which, const char* name, Shape shape) {
      if (!held[which].defined()) held[which] = step.temporary(name, shape);
      return held[which];
    }
  };
  /// Rows of one expert arrive in its order, which is that of the ranks: they travel straight to and from
  /// where the expert has them, without a pass over them.
  bool straight() const { return local_experts() == 1; }
  /// Rows sorted by expert, of all ranks, get under way; they arrive in memory of the most rows. `received`:
  /// where experts want them, if that is there already.
  void dispatch_start(Step& step, const ExpertRowCounts& counts, Tensor sorted, int64_t most, Flight& flight,
                      Tensor received = {}) const;
  /// received := them.
  void dispatch_finish(Step& step, const ExpertRowCounts& counts, Tensor received, Flight& flight) const;
  /// Of a straight flight that had no memory given: where they are, to be released.
  Tensor dispatch_finish(Step& step, Flight& flight) const;
  /// The way back: sorted := rows of this rank's tokens. `received` may be released at once; a straight
  /// flight takes it, and releases it when it ends, or, if it stays, in release().
  void give_back_start(Step& step, const ExpertRowCounts& counts, Tensor sorted, Tensor received,
                       Flight& flight) const;
  void give_back_finish(Step& step, Tensor sorted, Flight& flight) const;
  static void release(Step& step, Flight& flight);
  /// Rows that vary over ranks are slices of all ranks' rows; and back.
  void claim(Step& step, Tensor t, Placement from, Placement to) const;

 private:
  /// Of the ranks of `axes`, those that have different tokens of the same samples.
  int64_t ranks_of_samples(AxisSet axes) const;
  /// What rows have passed through is there for the next flight, or released.
  static void end(Step& step, Flight& flight);
  bool two_levels() const { return groups_.expert_intra_node.size() > 1; }
  /// What a plan counts on: rows of each expert, of a rank with so many tokens.
  std::vector<int64_t> planned_counts(int64_t tokens, int64_t capacity) const;
  /// Fails where the last of a routing's counts names a token.
  void check_finite(int64_t token, const std::string& name) const;
  /// all: as counts_of_ranks gives it.
  int64_t rows_between(const std::vector<int64_t>& all, int64_t from, int64_t to) const;
  /// Rows that pass through a neighbour at most, where a rank sends `sent` of them and gets `most`.
  int64_t most_passing(int64_t sent, int64_t most) const {
    return std::min(sent * groups_.expert_intra_node.size(), most * groups_.expert_inter_node.size());
  }
  void lay_out_levels(ExpertRowCounts& counts, const std::vector<int64_t>& all) const;
  const Groups& groups_;
  int64_t experts_, rows_each_;
  double skew_ = 1;
};

}  // namespace ltrain
