// What each key changes in a run that goes on: the sections' effects, and those of the keys that differ from
// their section's.
#pragma once
#include <vector>

#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

/// Fills Key::effect. Error (internal) for a key that neither has a row nor lies in a section that has one.
void set_effects(std::vector<Key>& table);

}  // namespace ltrain::recipe
