#include "base/cache_folder.h"

#include <cstdlib>

namespace ltrain {

std::string cache_folder() {
  const auto of = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const std::string given = of("LTRAIN_CACHE_DIR"); !given.empty()) return given;
  if (const std::string xdg = of("XDG_CACHE_HOME"); xdg.starts_with('/')) return xdg + "/ltrain";
  if (const std::string home = of("HOME"); home.starts_with('/')) return home + "/.cache/ltrain";
  return "";
}

}  // namespace ltrain
