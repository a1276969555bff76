// Rules of profiled steps.
#include "base/error.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void profile_rules(const Recipe& r, const BrokenRule& broken) {
  const ProfileSettings& p = r.profile;
  if (p.step_start == 0) return;
  if (p.step_start > r.train.train_steps)
    broken("profile.step_start",
           fmt::format("is after the last of train.train_steps = {}; nearest valid value: {}",
                       r.train.train_steps, r.train.train_steps),
           {"train.train_steps"});
  if (p.step_end <= p.step_start)
    broken("profile.step_end",
           fmt::format("no step is from {} on and before {}; nearest valid value: {}", p.step_start,
                       p.step_end, p.step_start + 1),
           {"profile.step_start"});
}

void profile_layout_rules(const Recipe& r, int64_t world_size, const BrokenRule& broken) {
  if (r.profile.step_start == 0) return;
  std::string there;
  int64_t missing = -1;
  for (const int64_t rank : r.profile.ranks)
    if (rank >= world_size)
      missing = rank;
    else
      there += fmt::format("{}{}", there.empty() ? "" : ", ", rank);
  if (missing >= 0)
    broken("profile.ranks",
           fmt::format("there is no rank {} of {}; nearest valid value: [{}]", missing, world_size,
                       there.empty() ? std::to_string(world_size - 1) : there),
           {});
}

}  // namespace ltrain::recipe
