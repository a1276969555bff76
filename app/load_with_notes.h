// Loading a recipe for a command that prints, with what there is to say about it.
#pragma once
#include <cstdio>

#include "runtime/recipe/recipe.h"

namespace ltrain::app {

inline void print_notes(const Recipe& recipe) {
  for (const std::string& note : recipe.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
}

/// load_recipe, with its notes on standard error.
inline Recipe load_with_notes(const std::string& path, const std::vector<std::string>& overrides) {
  Recipe recipe = load_recipe(path, overrides);
  print_notes(recipe);
  return recipe;
}

}  // namespace ltrain::app
