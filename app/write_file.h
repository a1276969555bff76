// What a command writes beside its output.
#pragma once
#include <fstream>
#include <string>

#include "base/error.h"

namespace ltrain::app {

/// Error (storage) where it cannot.
inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) fail(ExitCode::storage, "{}: cannot be written", path);
}

}  // namespace ltrain::app
