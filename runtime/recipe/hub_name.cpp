#include "runtime/recipe/hub_name.h"

#include <filesystem>
#include <string_view>

#include "base/error.h"

namespace ltrain::recipe {

std::string download_first(const std::string& path) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  const size_t slash = path.find('/');
  std::error_code error;
  if (slash == std::string::npos || slash == 0 || path[0] == '.' || std::filesystem::exists(path, error))
    return "";
  const std::string owner = path.substr(0, slash), name = path.substr(slash + 1);
  if (name.empty() || name.ends_with(".json") ||
      (owner + name).find_first_not_of(kLetters) != std::string::npos ||
      std::filesystem::exists(owner, error))
    return "";
  return fmt::format(
      "; a model of the Hugging Face Hub is downloaded first, as ltrain does not download: `hf download {} "
      "--local-dir {}`, then model.from: {}",
      path, name, name);
}

}  // namespace ltrain::recipe
