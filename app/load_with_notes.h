// Loading of a recipe for a command, with its notes.
#pragma once
#include "app/print_notes.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::app {

/// Calls load_recipe and prints its notes to standard error.
inline Recipe load_with_notes(const std::string& path, const std::vector<std::string>& overrides) {
  Recipe recipe = load_recipe(path, overrides);
  print_notes(recipe.notes);
  return recipe;
}

}  // namespace ltrain::app
