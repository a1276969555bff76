// What the keys of each section change in a run that goes on; a key that differs says so in its row
// (Key::changes).
#pragma once
#include <vector>

#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

/// Fills Key::effect. Error (internal) for a key that says nothing in a section that says nothing.
void set_effects(std::vector<Key>& table);

}  // namespace ltrain::recipe
