// Rules of numbers: what a precision and the settings that go with it need of each other.
#include "kernels/core/error.h"
#include "runtime/recipe/rules_parts.h"
#include "runtime/recipe/schema.h"

namespace ltrain::recipe {

void precision_rules(const Recipe& r, const BrokenRule& broken) {
  const LossScaleSettings& s = r.loss_scale.settings;
  if (s.minimum > s.initial)
    broken(
        "loss_scale.minimum",
        fmt::format("must be at most loss_scale.initial; nearest valid value: {}", write_number(s.initial)),
        {"loss_scale.initial"});
}

}  // namespace ltrain::recipe
