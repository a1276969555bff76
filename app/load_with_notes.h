// Loading a recipe for a command that prints, with what there is to say about it.
#pragma once
#include "app/print_notes.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::app {

/// load_recipe, with its notes on standard error.
inline Recipe load_with_notes(const std::string& path, const std::vector<std::string>& overrides) {
  Recipe recipe = load_recipe(path, overrides);
  print_notes(recipe.notes);
  return recipe;
}

}  // namespace ltrain::app
