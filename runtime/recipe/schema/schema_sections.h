// The sections of a recipe: a row each, with its help and what its keys change in a run that goes on.
#pragma once
#include <vector>

#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

/// Fills Key::effect of keys whose row says nothing (Key::changes). Error (internal) for a key whose sections
/// say nothing either.
void set_effects(std::vector<Key>& table);

}  // namespace ltrain::recipe
