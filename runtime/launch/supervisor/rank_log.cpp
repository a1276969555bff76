#include "runtime/launch/supervisor/rank_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/limits.h"

namespace ltrain {
namespace {

/// Opens a file for appending and returns its size.
std::pair<Fd, int64_t> open_log(const std::string& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
               0644));
  if (!fd.valid() && errno == ELOOP)
    fail(ExitCode::storage, "{}: a log is written to a file, and this is a symbolic link: remove it", path);
  struct stat s {};
  if (!fd.valid() && errno != ENXIO) fail_system(path, errno, ExitCode::storage);
  if (!fd.valid() || ::fstat(fd.get(), &s) != 0 || !S_ISREG(s.st_mode))
    fail(ExitCode::storage, "{}: a log is written to a file, and this is something else: remove it", path);
  return {std::move(fd), s.st_size};
}

}  // namespace

RankLog::RankLog(std::string path, int64_t most_bytes) : path_(std::move(path)), most_bytes_(most_bytes) {
  std::tie(file_, bytes_) = open_log(path_);
}

void RankLog::write(std::string_view text) {
  if (!is_open()) return;
  if (most_bytes_ > 0 && bytes_ > 0 && bytes_ + static_cast<int64_t>(text.size()) > most_bytes_) rotate();
  bytes_ += static_cast<int64_t>(text.size());
  while (!text.empty()) {  // a file is always ready
    const ssize_t n = ::write(file_.get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

/// Goes on in the old file if the folder does not allow a new one.
void RankLog::rotate() {
  bytes_ = 0;  // tries again after as many bytes
  if (std::rename(path_.c_str(), (path_ + ".1").c_str()) != 0) return;
  try {
    std::tie(file_, bytes_) = open_log(path_);
  } catch (const Error&) {
  }
}

}  // namespace ltrain
