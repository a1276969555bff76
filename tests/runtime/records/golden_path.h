// Record files that other programs wrote.
#pragma once
#include <string>

namespace ltrain::records::test {

inline std::string golden_path(const std::string& name) {
  return LTRAIN_SOURCE_DIR "/tests/golden/records/" + name;
}

}  // namespace ltrain::records::test
