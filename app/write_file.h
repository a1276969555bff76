// Output file of a command.
#pragma once
#include <fstream>
#include <string>

#include "base/error.h"

namespace ltrain::app {

/// Throws Error (storage) if the file cannot be written.
inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) fail(ExitCode::storage, "{}: cannot be written", path);
}

}  // namespace ltrain::app
