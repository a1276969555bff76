// Where what was measured or found on a machine is kept between runs.
#pragma once
#include <string>

namespace ltrain {

/// LTRAIN_CACHE_DIR, or ltrain below XDG_CACHE_HOME or ~/.cache; empty where there is none of them.
std::string cache_folder();

}  // namespace ltrain
