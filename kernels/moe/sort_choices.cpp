#include "kernels/moe/sort_choices.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void sort_choices(Stream& s, const Routing& r, Tensor kept, Tensor router_counts,
                  const ChosenExperts& which) {
  const int64_t n = r.counts.elements() - 1;
  LT_CHECK(r.slots.shape == r.experts.shape && kept.shape == r.experts.shape &&
               r.sources.elements() == r.experts.elements() && n >= 1 && which.count <= kMostListed &&
               (!which.only || which.count <= n),
           "sort_choices: expected slots and kept {}, {} sources and at most {} listed experts; got slots "
           "{}, kept {}, {} sources, {} listed, {} experts",
           to_string(r.experts.shape), r.experts.elements(), kMostListed, to_string(r.slots.shape),
           to_string(kept.shape), r.sources.elements(), which.count, n);
  if (s.meta()) {
    s.meta()->add(s,
                  op_cost("sort_choices", OpClass::elementwise, 0, {r.slots, r.sources}, {r.experts, kept}));
    for (const Tensor& out : {r.slots, r.sources, r.counts})
      place(s, "sort_choices", Rule::elementwise, {out}, {r.experts, kept});
    return;
  }
  LT_LAUNCH(s, sort_choices,
            ChoicePointers{.experts = r.experts.ptr<int32_t>(),
                           .kept = kept.ptr<int32_t>(),
                           .last = router_counts.ptr<int64_t>() + router_counts.elements() - 1,
                           .slots = r.slots.ptr<int32_t>(),
                           .sources = r.sources.ptr<int32_t>(),
                           .counts = r.counts.ptr<int64_t>(),
                           .choices = r.experts.elements(),
                           .n = n,
                           .which = which});
}

}  // namespace ltrain
