// A whole file.
#pragma once
#include <fstream>
#include <sstream>
#include <string>

namespace ltrain::test {

/// Bytes of a file; "" where it cannot be opened.
inline std::string read_file(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

}  // namespace ltrain::test
