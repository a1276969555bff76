#include "kernels/moe/shared_capacity.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void keep_of_all(Stream& s, Tensor kept, Tensor counts, Tensor experts, Tensor weights,
                 const GatheredTokens& tokens, int64_t first, int64_t capacity, const RouteArgs& args) {
  RouteArgs a = args;
  a.capacity = capacity;
  const int64_t all = experts.shape[0], mine = kept.shape[0];
  LT_CHECK(all == tokens.batch * tokens.seq && experts.shape == Shape({all, a.top_k}) &&
               weights.shape == experts.shape && kept.shape == Shape({mine, a.top_k}) && first >= 0 &&
               first + mine <= all && counts.elements() == a.experts && capacity > 0 &&
               tokens.seq % (tokens.context * (tokens.mirrored ? 2 : 1)) == 0,
           "keep_of_all: expected a capacity above 0 and choices of {} samples of {} tokens over {} context "
           "ranks, {} of them this rank's from {} on; got capacity {}, experts {}, weights {}, kept {}",
           tokens.batch, tokens.seq, tokens.context, mine, first, capacity, to_string(experts.shape),
           to_string(weights.shape), to_string(kept.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("keep_of_all", OpClass::elementwise, 0, {kept, counts}, {experts, weights}));
    place(s, "keep_of_all", Rule::elementwise, {kept}, {experts, weights});
    return;
  }
  LT_LAUNCH(s, keep_of_all, weights.dtype,
            SharedCapacityPointers{.experts = experts.ptr<int32_t>(),
                                   .weights = weights.data,
                                   .kept = kept.ptr<int32_t>(),
                                   .counts = counts.ptr<double>(),
                                   .tokens = tokens,
                                   .choices = experts.elements(),
                                   .first = first * a.top_k,
                                   .mine = kept.elements()},
            a);
}

}  // namespace ltrain
