// The version of the program.
#pragma once
#include <string>

namespace ltrain {

/// "0.1.0 (d56ef5d3a1)": that of CMakeLists.txt, and the commit that was built where it is known.
std::string version();

}  // namespace ltrain
