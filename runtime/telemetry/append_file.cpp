#include "runtime/telemetry/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/limits.h"

namespace ltrain {

AppendFile::AppendFile(const std::string& path, bool truncate, size_t most_waiting_bytes)
    : path_(path), most_(most_waiting_bytes) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (truncate ? O_TRUNC : 0), 0666);
  struct stat st {};
  if (fd_ < 0 || ::fstat(fd_, &st) != 0) {
    const int error = errno;
    if (fd_ >= 0) ::close(fd_);
    fail_system(path + ": cannot be written", error, ExitCode::storage);
  }
  whole_ = st.st_size;
}

AppendFile::~AppendFile() {
  retry();
  if (!waiting_.empty() && ::ftruncate(fd_, whole_) != 0) {
    // The torn record stays at the end, and the next start removes it.
  }
  ::close(fd_);
}

void AppendFile::append(std::string_view record) {
  if (!waiting_.empty() && waiting_.size() + record.size() > most_) {
    ++dropped_;
    retry();
    return;
  }
  waiting_ += record;
  sizes_.push_back(record.size());
  retry();
}

void AppendFile::retry() {
  size_t done = 0;
  int error = 0;
  while (done < waiting_.size() && error == 0) {
    const ssize_t n = ::write(fd_, waiting_.data() + done, waiting_.size() - done);
    if (n > 0)
      done += static_cast<size_t>(n);
    else if (n == 0 || errno != EINTR)
      error = n == 0 ? ENOSPC : errno;
  }
  waiting_.erase(0, done);
  size_t records = 0;
  for (; records < sizes_.size() && done >= sizes_[records]; ++records) done -= sizes_[records];
  sizes_.erase(sizes_.begin(), sizes_.begin() + static_cast<ptrdiff_t>(records));
  if (!sizes_.empty()) sizes_[0] -= done;
  if (records > 0 || waiting_.empty()) {
    struct stat st {};
    if (::fstat(fd_, &st) == 0) whole_ = st.st_size - static_cast<int64_t>(done);
  }
  if (error != 0 && !std::exchange(failing_, true))
    notes_.push_back(fmt::format(
        "warning: {} cannot be written: {}{}; what belongs there is kept in memory until there is "
        "room",
        path_, std::strerror(error), limit_hint(error)));
  if (error == 0 && std::exchange(failing_, false))
    notes_.push_back(dropped_ == 0
                         ? fmt::format("{} is written again; nothing is missing", path_)
                         : fmt::format("{} is written again; {} records are missing: they found no room in "
                                       "memory ({} MiB)",
                                       path_, std::exchange(dropped_, 0), most_ >> 20));
}

void AppendFile::finish() {
  retry();
  if (!sizes_.empty())
    notes_.push_back(
        fmt::format("warning: {} records are missing at the end of {}: there was no room for them",
                    static_cast<int64_t>(sizes_.size()) + dropped_, path_));
}

std::vector<std::string> AppendFile::notes() { return std::exchange(notes_, {}); }

}  // namespace ltrain
