#include "runtime/files/write_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/limits.h"

namespace ltrain {

void write_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) fail_system(path + ": cannot be written", errno, ExitCode::storage);
}

void replace_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  write_file(temporary, text);
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) fail_system(path + ": cannot be written", error.value(), ExitCode::storage);
}

}  // namespace ltrain
