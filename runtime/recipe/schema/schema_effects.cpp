#include "runtime/recipe/schema/schema_effects.h"

#include "kernels/base/error.h"

namespace ltrain::recipe {
namespace {

struct SectionEffect {
  std::string_view section;  ///< "train.", its subsections included
  Effect effect;
};

/// Of keys whose row says nothing else (Key::changes). The longest section that fits counts.
constexpr SectionEffect kSections[] = {
    {"model.", Effect::function},
    {"parallel.", Effect::speed},
    {"fp8.", Effect::function},
    {"loss_scale.", Effect::function},
    {"recompute.", Effect::speed},
    {"offload.", Effect::speed},
    {"data.", Effect::data},
    {"train.", Effect::nothing},
    {"train.batch_ramp.", Effect::schedule},
    {"optimizer.", Effect::function},
    {"sparsity.", Effect::function},
    {"schedule.", Effect::schedule},
    {"checkpoint.", Effect::nothing},
    {"launch.", Effect::speed},
    {"log.", Effect::nothing},
    {"profile.", Effect::nothing},
    {"debug.", Effect::nothing},
};

}  // namespace

std::string_view to_string(Effect e) {
  constexpr std::string_view names[] = {"unset", "function", "schedule", "data", "speed", "nothing"};
  return names[static_cast<int>(e)];
}

void set_effects(std::vector<Key>& table) {
  for (Key& key : table) {
    if (key.effect != Effect::unset) continue;
    size_t longest = 0;
    for (const SectionEffect& row : kSections)
      if (key.path.starts_with(row.section) && row.section.size() > longest)
        longest = row.section.size(), key.effect = row.effect;
    LT_CHECK(key.effect != Effect::unset, "{}: its row or its section must say what it changes", key.path);
  }
}

}  // namespace ltrain::recipe
