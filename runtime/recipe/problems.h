// What is wrong with a recipe, collected so that one run of the program reports all of it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "runtime/recipe/yaml_tree.h"

namespace ltrain {

/// Where each given key was given; keys that are not here have their default.
struct RecipeOrigins {
  std::string source;  ///< the recipe file
  std::map<std::string, recipe::Place> given;
  std::string rope_type;  ///< as given; the model itself keeps only the factor

  bool has(const std::string& path) const { return given.count(path) > 0; }
  recipe::Place place(const std::string& path) const {
    auto it = given.find(path);
    return it == given.end() ? recipe::Place{source, 0, 0} : it->second;
  }
};

namespace recipe {

class Problems {
 public:
  /// One line: "PLACE: TEXT".
  void add(const Place& place, std::string text) { found_.push_back({place, std::move(text)}); }
  bool empty() const { return found_.empty(); }
  /// Throws Error (usage) with at most ten of them, those of `source` in the order of its lines first.
  void raise_if_any(const std::string& source);

 private:
  struct Problem {
    Place place;
    std::string text;
  };
  std::vector<Problem> found_;
};

/// The candidate that `word` most likely meant, or "" when none is near.
std::string nearest_word(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace recipe
}  // namespace ltrain
