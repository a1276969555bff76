// Capacity of experts for tokens of several ranks that share one micro-batch. The choices of all ranks decide
// which of a rank's choices are kept.
#pragma once
#include "kernels/moe/route.h"
#include "kernels/tensor/host_device.h"

namespace ltrain {

/// Order of a micro-batch's tokens after a gather over ranks. Context ranks follow each other, each with its
/// tokens by sample, then position. With `mirrored` a rank has two runs of a sample's positions, of equal
/// length; the second is as far from the end as the first is from the beginning.
struct GatheredTokens {
  int64_t batch = 1, seq = 1;  ///< seq: of the full sample
  int64_t context = 1;         ///< number of context ranks
  bool mirrored = false;

  /// Row of a token. Tokens are numbered by sample, then position.
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

/// kept (T, k, i32) is not negative for those of this rank's choices that are among the first `capacity` of
/// their expert, in the order in which route_forward keeps choices of all tokens. counts (E, f64): number of
/// them. experts, weights: results of route_forward, gathered, (all T, k); this rank's rows begin at `first`.
void keep_of_all(Stream& s, Tensor kept, Tensor counts, Tensor experts, Tensor weights,
                 const GatheredTokens& tokens, int64_t first, int64_t capacity, const RouteArgs& args);

struct SharedCapacityPointers {
  const int32_t* experts;
  const void* weights;
  int32_t* kept;
  double* counts;
  GatheredTokens tokens;
  int64_t choices;      ///< choices of all ranks
  int64_t first, mine;  ///< choices of this rank

  /// Index of choice i, in token order, among the gathered choices.
  LT_HD int64_t at(int64_t i, int64_t top_k) const { return tokens.row(i / top_k) * top_k + i % top_k; }
};
LT_KERNEL(keep_of_all, DType t, SharedCapacityPointers p, RouteArgs args)

}  // namespace ltrain
