// Sections of a recipe: help text, and the effect of their keys on resume.
#pragma once
#include <vector>

#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

/// Sets Key::effect of keys without Key::changes. Throws Error (internal) for a key whose section has no
/// effect either.
void set_effects(std::vector<Key>& table);

}  // namespace ltrain::recipe
