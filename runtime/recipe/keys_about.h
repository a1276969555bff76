// Keys of recipes by words of their names and meanings.
#pragma once
#include <string>
#include <vector>

namespace ltrain {

/// recipe_reference_text of the keys whose name, alias, values or meaning has each of `words`, in any case of
/// letters.
std::string keys_about(const std::vector<std::string>& words);

}  // namespace ltrain
