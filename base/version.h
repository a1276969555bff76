// The version of the program.
#pragma once
#include <string>

namespace ltrain {

/// "0.1.0 (d56ef5d3a1)": version of CMakeLists.txt, and the commit of the build if known.
std::string version();

}  // namespace ltrain
