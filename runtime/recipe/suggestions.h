// Checks of the suggestions in error messages. Each rule suggests values that satisfy the rule itself. This
// code parses the suggestions, tries each with the whole recipe, and keeps those that are accepted.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::recipe {

/// Keys and values to set together, as on the command line ("train.train_steps", "5").
struct Suggestion {
  std::string text;  ///< text in the message: "5", "parallel.tensor: 2"
  std::vector<std::pair<std::string, std::string>> changes;
};

/// "RULE; nearest valid value: 6 or 8, or parallel.tensor: 1, with parallel.order: tp-cp-dp-pp; MORE", or
/// with "write" instead of "nearest valid value:". Alternatives are separated by "or". An alternative without
/// "KEY: " is a value of the key that the message is about.
struct Advice {
  std::string rule, mark, more;
  std::vector<Suggestion> suggestions;
  std::string text() const;
};
Advice read_advice(const std::string& path, const std::string& text);

/// Removes suggestions that `accepted` rejects. If it rejects all of several suggestions, values near the one
/// in `recipe` are tried. If these are rejected too, nothing is suggested. Calls `accepted` at most some
/// hundreds of times.
void keep_accepted(Diagnostics& diagnostics, const Recipe& recipe,
                   const std::function<bool(const Diagnostic&, const Suggestion&)>& accepted);

}  // namespace ltrain::recipe
