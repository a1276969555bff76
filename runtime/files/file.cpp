#include "runtime/files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/limits.h"
#include "base/progress.h"

namespace ltrain::data {
namespace {

constexpr size_t kWriteBuffer = 1 << 20;
constexpr int64_t kMaxRead = 1 << 30;  // one system call moves less than 2 GiB

/// Reports a write error as a storage error, because a restart helps once it is fixed.
[[noreturn]] void cannot_write(const std::string& path, const std::string& what, int error) {
  fail(ExitCode::storage, "{}: {}: {} (errno {}){}", path, what, std::strerror(error), error,
       error == ENOSPC || error == EDQUOT ? "; free space there, or choose another --output" : "");
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a FIFO would block before its kind is known. It has no effect on regular
  // files.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd_ < 0) fail_system(path_ + ": cannot be opened", errno, ExitCode::data);
  struct stat st {};
  if (::fstat(fd_, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd_);
    fail(ExitCode::data, "{}: not a regular file", path_);
  }
  size_ = st.st_size;
}

InputFile::~InputFile() { ::close(fd_); }

int64_t InputFile::read_some(void* to, int64_t offset, int64_t bytes) const {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t n =
        ::pread(fd_, static_cast<char*>(to) + done, std::min(bytes - done, kMaxRead), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail(ExitCode::data, "{}: reading at byte offset {}: {}", path_, offset + done, std::strerror(errno));
    if (n == 0) break;
    done += n;
    note_progress();
  }
  return done;
}

void InputFile::read(void* to, int64_t offset, int64_t bytes) const {
  const int64_t got = read_some(to, offset, bytes);
  if (got == bytes) return;
  struct stat st {};
  const int64_t now = ::fstat(fd_, &st) == 0 ? st.st_size : offset + got;
  fail(ExitCode::data,
       "{}: {} bytes are needed at byte offset {}, but the file ends at byte offset {}; it had {} bytes when "
       "it was opened. It is truncated: build or copy it again",
       path_, bytes, offset, now, size_);
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  temporary_ = fmt::format("{}.tmp-{}", path_, ::getpid());
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
  fd_ = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  named_ = fd_ < 0;
  if (named_) fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd_ < 0) cannot_write(temporary_, "cannot be created", errno);
  buffer_.reserve(kWriteBuffer);
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (named_) ::unlink(temporary_.c_str());
}

std::string OutputFile::path_before_commit() const {
  return named_ ? temporary_ : fmt::format("/proc/self/fd/{}", fd_);
}

void OutputFile::write(const void* from, int64_t bytes) {
  const char* p = static_cast<const char*>(from);
  bytes_ += bytes;
  while (bytes > 0) {
    const int64_t n = std::min<int64_t>(bytes, kWriteBuffer - buffer_.size());
    buffer_.insert(buffer_.end(), p, p + n);
    p += n;
    bytes -= n;
    if (buffer_.size() == kWriteBuffer) flush();
  }
}

void OutputFile::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      cannot_write(
          temporary_,
          fmt::format("writing at byte offset {}", bytes_ - static_cast<int64_t>(buffer_.size() - done)),
          n < 0 ? errno : ENOSPC);
    done += n;
    note_progress();
  }
  buffer_.clear();
}

void OutputFile::sync() {
  flush();
  // EINVAL: a pipe, or a file system that cannot sync.
  if (::fsync(fd_) != 0 && errno != EINVAL) cannot_write(temporary_, "fsync", errno);
}

void OutputFile::commit() {
  sync();
  if (!named_) {
    ::unlink(temporary_.c_str());  // left by a killed process with the same id
    if (::linkat(AT_FDCWD, path_before_commit().c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) !=
        0)
      cannot_write(temporary_, "could not be given its name", errno);
    named_ = true;
  }
  ::close(fd_);
  fd_ = -1;
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    cannot_write(temporary_, fmt::format("could not be renamed to {}", path_), error);
  }
}

bool file_exists(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0;
}

std::string read_whole(const std::string& path, int64_t most_bytes) {
  InputFile file(path);
  if (file.size() > most_bytes)
    fail(ExitCode::data, "{}: {} bytes, expected at most {}", path, file.size(), most_bytes);
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(text.data(), 0, file.size());
  return text;
}

}  // namespace ltrain::data
