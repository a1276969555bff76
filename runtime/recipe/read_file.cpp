#include "runtime/recipe/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ltrain::recipe {
namespace {

std::string kind_of(mode_t mode) {
  return S_ISDIR(mode)                    ? "is a folder"
         : S_ISFIFO(mode)                 ? "is a pipe"
         : S_ISSOCK(mode)                 ? "is a socket"
         : S_ISCHR(mode) || S_ISBLK(mode) ? "is a device"
                                          : "is no regular file";
}

/// Closes its file descriptor when destroyed.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

std::string read_small_file(const std::string& path, std::string& text, size_t most, int* error) {
  text.clear();
  if (error) *error = 0;
  const auto failed = [] { return fmt::format("cannot be read: {}", std::strerror(errno)); };
  // Without O_NONBLOCK, opening a pipe blocks until it has a writer. O_NOCTTY keeps a terminal from becoming
  // the controlling terminal.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  if (file.fd < 0) {
    if (error) *error = errno;
    return failed();
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return failed();
  if (!S_ISREG(info.st_mode)) return kind_of(info.st_mode) + ", and must be a regular file";
  std::string buffer(std::min<size_t>(static_cast<size_t>(info.st_size) + 1, most + 1), '\0');
  size_t filled = 0;
  while (filled < buffer.size()) {
    const ssize_t n = ::read(file.fd, buffer.data() + filled, buffer.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed();
    if (n == 0) break;
    filled += static_cast<size_t>(n);
    if (filled == buffer.size()) buffer.resize(std::min(2 * filled, most + 1));  // the file is growing
  }
  if (filled > most) return fmt::format("has more than {} bytes", most);
  buffer.resize(filled);
  text = std::move(buffer);
  return "";
}

}  // namespace ltrain::recipe
