// What is wrong with a recipe, collected so that one run of the program reports all of it.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/recipe/yaml_tree.h"

namespace ltrain {

namespace recipe {
struct RawValues;
}

/// Where each given key was given; keys that are not here have their default.
struct RecipeOrigins {
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::string source;                                                           ///< the recipe file
  std::unordered_map<std::string, recipe::Place, Hash, std::equal_to<>> given;  // rules ask for each key
  std::shared_ptr<const recipe::RawValues> values;  ///< the same with their values, to try others

  bool has(std::string_view path) const { return given.contains(path); }
  recipe::Place place(const std::string& path) const {
    auto it = given.find(path);
    return it == given.end() ? recipe::Place{source, 0, 0} : it->second;
  }
};

namespace recipe {

/// What is wrong with one value.
struct Diagnostic {
  Place place;
  std::string head;  ///< "train.train_steps = x: ", or nothing
  std::string text;  ///< the rule and what would work (suggestions.h)
  std::string path;  ///< key whose value breaks the rule; empty where suggestions are not to be tried
  bool of_value =
      false;  ///< the value by itself is wrong, so that rules over several keys are not looked at yet
};

class Diagnostics {
 public:
  /// One line: "PLACE: TEXT". The text may quote the recipe as it is: it is made printable here.
  void add(const Place& place, const std::string& text) { add({place, "", text, "", false}); }
  void add(Diagnostic problem) { found_.push_back(std::move(problem)); }
  bool empty() const { return found_.empty(); }
  const std::vector<Diagnostic>& list() const { return found_; }
  /// Another text for problem `i` of the list.
  void replace(size_t i, std::string text) { found_.at(i).text = std::move(text); }
  /// Throws Error (usage) with at most ten of them, those of `source` in the order of its lines first.
  void raise_if_any(const std::string& source);

 private:
  std::vector<Diagnostic> found_;
};

/// In lower case, without _ and -.
std::string folded(const std::string& s);
/// The candidate that `word` most likely meant, or "" when none is near.
std::string nearest_word(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace recipe
}  // namespace ltrain
