// Search for recipe keys.
#pragma once
#include <string>
#include <vector>

namespace ltrain {

/// recipe_reference_text of the keys that contain each of `words` in their name, alias, values or help. Case
/// is ignored.
std::string keys_about(const std::vector<std::string>& words);

}  // namespace ltrain
