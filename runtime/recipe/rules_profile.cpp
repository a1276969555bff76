// Rules of measured steps.
#include "kernels/core/error.h"
#include "runtime/recipe/rules_parts.h"

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
  for (const int64_t rank : r.profile.ranks)
    if (rank >= world_size && r.profile.step_start > 0)
      broken(
          "profile.ranks",
          fmt::format("there is no rank {} of {}; nearest valid value: {}", rank, world_size, world_size - 1),
          {});
}

}  // namespace ltrain::recipe
