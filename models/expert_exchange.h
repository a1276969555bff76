// Rows of tokens to the ranks of their experts, and back (GShard's all-to-all, dropless: as many rows as
// come).
#pragma once
#include "kernels/ops/copy_parts.h"
#include "kernels/ops/grouped_matmul.h"
#include "kernels/ops/route.h"
#include "models/step.h"

namespace ltrain {

/// How the rows of one micro-batch are spread; numbers that the host has.
struct ExpertRowCounts {
  int64_t sorted = 0;                 ///< rows of this rank's tokens
  int64_t received = 0;               ///< rows of this rank's experts, from all ranks
  GroupRows groups;                   ///< by its experts
  std::vector<int64_t> send, arrive;  ///< to and from each rank of the expert group
  /// From the order of arrival (by rank, then expert) to that of experts; columns are left open.
  std::vector<CopyPart> parts;
};

class ExpertExchange {
 public:
  /// `rows`: assignments that a rank makes at most; `from_a_rank`: of them, to one rank.
  ExpertExchange(const Groups& groups, int64_t experts) : groups_(groups), experts_(experts) {}
  int64_t local_experts() const { return experts_ / groups_.expert.size(); }
  bool many() const { return groups_.expert.many(); }
  /// Most rows that can come to a rank's experts, of `tokens` tokens a rank that choose `top_k` experts each,
  /// of which one takes `capacity` (0: all).
  int64_t most_rows(int64_t tokens, int64_t top_k, int64_t capacity) const;
  /// Counts of this rank's tokens become known to the host and are exchanged. On meta: even ones, of which
  /// each expert takes `capacity` (0: all). Throws when the router's logits were not finite. `name`: of the
  /// layer.
  ExpertRowCounts count(Step& step, const Routing& routing, int64_t capacity, const std::string& name) const;
  /// received := rows sorted by expert, of all ranks; both lie in memory of the most rows. Started on the
  /// group's stream; `in` must live until finish.
  struct Flight {
    Tensor arrived;  ///< in the order of arrival
    Event done;
  };
  Flight dispatch_start(Step& step, const ExpertRowCounts& counts, Tensor sorted, int64_t most) const;
  void dispatch_finish(Step& step, const ExpertRowCounts& counts, Tensor received, Flight& flight) const;
  /// The way back: sorted := rows of this rank's tokens.
  void give_back(Step& step, const ExpertRowCounts& counts, Tensor sorted, Tensor received) const;

 private:
  void claim(Step& step, Tensor t, Placement from, Placement to) const;
  std::vector<CopyPart> parts(const ExpertRowCounts& counts, int64_t cols, bool back) const;
  const Groups& groups_;
  int64_t experts_;
};

}  // namespace ltrain
