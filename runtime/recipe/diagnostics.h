// Errors of a recipe, collected so that one run of the program reports all of them.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/nearest_word.h"
#include "runtime/recipe/yaml_tree.h"

namespace ltrain {

namespace recipe {
struct RawValues;
}

/// Locations where keys were given. Keys that are not listed have their default.
struct RecipeOrigins {
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::string source;  ///< the recipe file
  // location of each given key; a hash map because rules query every key
  std::unordered_map<std::string, recipe::Place, Hash, std::equal_to<>> given;
  /// given keys with their values, for trying suggestions
  std::shared_ptr<const recipe::RawValues> values;

  bool has(std::string_view path) const { return given.contains(path); }
  recipe::Place place(const std::string& path) const {
    auto it = given.find(path);
    return it == given.end() ? recipe::Place{source, 0, 0} : it->second;
  }
};

namespace recipe {

/// One error in a recipe.
struct Diagnostic {
  Place place;
  std::string head;       ///< "train.train_steps = x: ", or empty
  std::string text;       ///< the rule and suggestions (suggestions.h)
  std::string path;       ///< key whose value breaks the rule; empty: do not try the suggestions
  bool of_value = false;  ///< the value itself is invalid, so rules over several keys are not checked yet
};

class Diagnostics {
 public:
  /// Adds an error without a key. The text may quote the recipe verbatim; it is made printable later.
  void add(const Place& place, const std::string& text) { add({place, "", text, "", false}); }
  void add(Diagnostic problem) { found_.push_back(std::move(problem)); }
  bool empty() const { return found_.empty(); }
  const std::vector<Diagnostic>& list() const { return found_; }
  /// Replaces the text of error `i`.
  void replace(size_t i, std::string text) { found_.at(i).text = std::move(text); }
  /// Throws Error (usage) with at most ten errors. Errors in `source` come first, in the order of its lines.
  void raise_if_any(const std::string& source);

 private:
  std::vector<Diagnostic> found_;
};

using ltrain::folded;
using ltrain::nearest_word;

}  // namespace recipe
}  // namespace ltrain
