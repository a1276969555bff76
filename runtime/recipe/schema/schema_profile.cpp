// Keys of profiled steps.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {

void add_profile_keys(std::vector<Key>& t) {
  Key start = integer("profile.step_start", LT_MEMBER(profile.step_start),
                      "First step to trace, into output_dir/traces; 0: none.")
                  .between(0, kMaxSteps);
  start.alias({"profile_step_start"});
  t.push_back(std::move(start));
  Key end = integer("profile.step_end", LT_MEMBER(profile.step_end),
                    "First later step that is not traced; default: the one after step_start.")
                .between(0, kMaxSteps);
  end.alias({"profile_step_end"});
  end.imply = [](Recipe& r) { r.profile.step_end = r.profile.step_start > 0 ? r.profile.step_start + 1 : 0; };
  t.push_back(std::move(end));
  Key ranks = integers(
      "profile.ranks", [](Recipe& r) -> std::vector<int64_t>& { return r.profile.ranks; }, "Ranks to trace.",
      0);
  ranks.alias({"profile_ranks"});
  t.push_back(std::move(ranks));
}

}  // namespace ltrain::recipe
