// What a message says would work, taken apart, tried with the whole recipe, and put together again. Every
// rule names values that satisfy the rule itself; whether they hold together with the rest is found out here,
// in one place.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::recipe {

/// Keys and their values as on the command line ("train.train_steps", "5"), to be set together.
struct Suggestion {
  std::string text;  ///< as it stands in the message: "5", "parallel.tensor: 2"
  std::vector<std::pair<std::string, std::string>> changes;
};

/// "RULE; nearest valid value: 6 or 8, or parallel.tensor: 1, with parallel.order: tp-cp-dp-pp; MORE", or
/// with "write" in the place of "nearest valid value:". Alternatives are divided by "or"; what is not KEY:
/// VALUE is a value of the key that the message is about.
struct Advice {
  std::string rule, mark, more;
  std::vector<Suggestion> suggestions;
  std::string text() const;
};
Advice read_advice(const std::string& path, const std::string& text);

/// Leaves the suggestions of `diagnostics` that `accepted` takes for a problem. Where it takes none of
/// several, the values near to that of `recipe` are tried, and where these are not taken either, nothing is
/// suggested. At most some hundreds of calls.
void keep_accepted(Diagnostics& diagnostics, const Recipe& recipe,
                   const std::function<bool(const Diagnostic&, const Suggestion&)>& accepted);

}  // namespace ltrain::recipe
