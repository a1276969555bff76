// A capacity of experts for the tokens of several ranks that have parts of one micro-batch: which of a rank's
// choices are kept, by the choices of all of them.
#pragma once
#include "kernels/moe/route.h"
#include "kernels/tensor/host_device.h"

namespace ltrain {

/// Where the tokens of a micro-batch lie once those of all ranks are gathered. Context ranks follow each
/// other, each with its tokens by sample, then position; with `mirrored` one has two runs of a sample's
/// positions, of equal length, the second as far from the end as the first is from the beginning.
struct GatheredTokens {
  int64_t batch = 1, seq = 1;  ///< seq: of the whole sample
  int64_t context = 1;         ///< ranks
  bool mirrored = false;

  /// The row of a token, which are counted by sample, then position.
  LT_HD int64_t row(int64_t token) const {
    const int64_t sample = token / seq, position = token % seq, each = seq / context;
    int64_t rank = position / each, at = position % each;
    if (mirrored) {
      const int64_t half = each / 2, run = position / half;
      rank = run < context ? run : 2 * context - 1 - run;
      at = position % half + (run < context ? 0 : half);
    }
    return (rank * batch + sample) * each + at;
  }
};

/// kept (T, k, i32) := not negative where one of this rank's choices is among the `capacity` that its expert
/// takes first, as route_forward takes them from all tokens; counts (E, f64) := how many are. experts,
/// weights: of route_forward, gathered, (all T, k); this rank's begin at `first`.
void keep_of_all(Stream& s, Tensor kept, Tensor counts, Tensor experts, Tensor weights,
                 const GatheredTokens& tokens, int64_t first, int64_t capacity, const RouteArgs& args);

struct SharedCapacityPointers {
  const int32_t* experts;
  const void* weights;
  int32_t* kept;
  double* counts;
  GatheredTokens tokens;
  int64_t choices;      ///< of all ranks
  int64_t first, mine;  ///< choices of this rank

  /// Where choice i, by token, lies among the gathered.
  LT_HD int64_t at(int64_t i, int64_t top_k) const { return tokens.row(i / top_k) * top_k + i % top_k; }
};
LT_KERNEL(keep_of_all, DType t, SharedCapacityPointers p, RouteArgs args)

}  // namespace ltrain
