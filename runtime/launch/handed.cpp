#include "runtime/launch/handed.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/limits.h"

namespace ltrain {
namespace {

[[noreturn]] void refuse(const char* variable) {
  fail(ExitCode::usage, "environment variable {}: must be a descriptor that `ltrain run` has opened",
       variable);
}

/// -1: no descriptor was handed.
int descriptor(const Variables& v, const char* variable) {
  const auto launched = v.find("LTRAIN_LAUNCHER"), at = v.find(variable);
  if (launched == v.end() || launched->second != "1" || at == v.end() || !v.contains("LTRAIN_RANK"))
    return -1;
  const std::string& s = at->second;
  int fd = -1;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), fd);
  if (error != std::errc() || end != s.data() + s.size() || fd < 3) refuse(variable);
  return fd;
}

}  // namespace

Fd make_handed_text(const std::string& text) {
  Fd fd(::memfd_create("ltrain-recipe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) fail_system("memory for the recipe's text", errno, ExitCode::internal);
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd.get(), text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_system("memory for the recipe's text", errno, ExitCode::internal);
    at += static_cast<size_t>(n);
  }
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  return fd;
}

std::optional<std::string> handed_text(const Variables& variables, const char* variable, size_t most_bytes) {
  const int fd = descriptor(variables, variable);
  if (fd < 0) return {};
  struct stat s {};
  if (::fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size > static_cast<off_t>(most_bytes))
    refuse(variable);
  std::string text(static_cast<size_t>(s.st_size), '\0');
  for (size_t at = 0; at < text.size();) {  // pread: all ranks share the file position
    const ssize_t n = ::pread(fd, text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) refuse(variable);  // a file that is not open for reading
    at += static_cast<size_t>(n);
  }
  return text;
}

void tell_joined(const Variables& variables) {
  const int fd = descriptor(variables, kJoinedVariable);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t ignored = ::write(fd, "j", 1);
  ::close(fd);
}

}  // namespace ltrain
