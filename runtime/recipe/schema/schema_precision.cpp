// Keys of precision and numerical checks.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {

void add_precision_keys(std::vector<Key>& t) {
  const auto only = [](Key key) {
    key.when("precision: fp16", true, [](const Recipe& r) { return r.precision == Precision::fp16; });
    return key;
  };
  t.push_back(only(number("loss_scale.initial", LT_MEMBER(loss_scale.settings.initial), "Initial loss scale.")
                       .between(0x1p-20, 0x1p60)
                       .alias({"initial_loss_scale"})));
  t.push_back(
      only(number("loss_scale.growth_factor", LT_MEMBER(loss_scale.settings.growth_factor),
                  "Factor by which the scale grows after `window` consecutive steps without overflow.")
               .between(1, 65536)));
  t.push_back(only(number("loss_scale.backoff_factor", LT_MEMBER(loss_scale.settings.backoff_factor),
                          "Factor on the scale after an overflow.")
                       .inside(0, 1)));
  t.push_back(only(integer("loss_scale.window", LT_MEMBER(loss_scale.settings.window),
                           "Steps between two growths of the scale.")
                       .between(1, kMaxSteps)
                       .alias({"loss_scale_window"})));
  t.push_back(only(integer("loss_scale.hysteresis", LT_MEMBER(loss_scale.settings.hysteresis),
                           "Number of overflows since the last growth after which the scale backs off.")
                       .between(1, 1000)));
  t.push_back(
      only(number("loss_scale.minimum", LT_MEMBER(loss_scale.settings.minimum), "Minimum of the scale.")
               .between(0x1p-20, 0x1p60)
               .alias({"min_loss_scale"})));
  t.push_back(only(integer("loss_scale.max_skipped_steps", LT_MEMBER(loss_scale.max_skipped_steps),
                           "Consecutive steps with overflow after which the run ends with exit code 76.")
                       .changes(Effect::nothing)
                       .between(1, kMaxSteps)));
}

}  // namespace ltrain::recipe
