// Folder for measurements and findings about a machine, kept between runs.
#pragma once
#include <string>

namespace ltrain {

/// LTRAIN_CACHE_DIR, or ltrain below XDG_CACHE_HOME or ~/.cache; empty if none is set.
std::string cache_folder();

}  // namespace ltrain
