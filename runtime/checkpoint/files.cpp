#include "runtime/checkpoint/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/bytes_text.h"
#include "base/limits.h"
#include "base/progress.h"

namespace ltrain {

namespace {

constexpr int64_t kChunk = 4 << 20;  // bytes of one read or write call
constexpr int64_t kSyncPiece = 64 << 20;

[[noreturn]] void fail_errno(const std::string& path, const char* what, int error) {
  if (error == EMFILE || error == ENFILE) fail_system(path + ": " + what, error, ExitCode::storage);
  std::string advice;
  if (error == ENOSPC) advice = "; free space there, or lower checkpoint.keep_latest";
  if (error == EDQUOT) advice = "; the quota is used up: free space, or choose another output_dir";
  if (const std::string hint = limit_hint(error); !hint.empty()) advice = hint;
  if (error == EROFS || error == EACCES || error == EPERM)
    advice = "; choose an output_dir that can be written";
  fail(ExitCode::storage, "{}: {}: {} (errno {}){}", path, what, std::strerror(error), error, advice);
}

}  // namespace

Hasher::Hasher() : state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
Hasher::~Hasher() { XXH3_freeState(state_); }
void Hasher::add(const void* data, size_t bytes) { XXH3_128bits_update(state_, data, bytes); }
std::string Hasher::hex() const {
  const XXH128_hash_t h = XXH3_128bits_digest(state_);
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

std::string hash_text(const std::string& text) {
  Hasher h;
  h.add(text.data(), text.size());
  return h.hex();
}

NewFile::NewFile(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_errno(path_, "create", errno);
}

NewFile::~NewFile() {
  if (fd_ >= 0) ::close(fd_);
}

void NewFile::reserve(int64_t bytes) {
  if (bytes <= 0) return;
  if (::fallocate(fd_, FALLOC_FL_KEEP_SIZE, 0, bytes) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
    fail_errno(path_, fmt::format("reserve {}", bytes_text(bytes)).c_str(), errno);
}

void NewFile::write(const void* data, int64_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, from, static_cast<size_t>(std::min(bytes, kChunk)));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path_, fmt::format("write at byte {}", bytes_).c_str(), errno);
    hasher_.add(from, static_cast<size_t>(n));
    from += n;
    bytes -= n;
    bytes_ += n;
    if (bytes_ - begun_ >= kSyncPiece) {  // start writing to the disk early; fsync reports errors
      ::sync_file_range(fd_, begun_, bytes_ - begun_, SYNC_FILE_RANGE_WRITE);
      begun_ = bytes_;
    }
    note_progress();
  }
}

void NewFile::sync() {
  // Wait in chunks, so that a slow disk shows progress. An fsync of everything in memory would be silent for
  // minutes. Errors of a chunk are reported here because fsync does not repeat them.
  for (int64_t at = 0; at < bytes_; at += kSyncPiece) {
    if (::sync_file_range(fd_, at, std::min(kSyncPiece, bytes_ - at),
                          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) !=
            0 &&
        (errno == EIO || errno == ENOSPC || errno == EDQUOT || errno == ENOMEM))
      fail_errno(path_, "write to the disk", errno);
    note_progress();
  }
  if (::fsync(fd_) != 0) fail_errno(path_, "fsync", errno);
}

void NewFile::close() {
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail_errno(path_, "close", errno);
}

ReadFile::ReadFile(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a FIFO would block before its kind is known. It has no effect on regular
  // files.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd_ < 0) fail_errno(path_, "open", errno);
  struct stat s;
  if (::fstat(fd_, &s) != 0 || !S_ISREG(s.st_mode)) {
    ::close(fd_);
    fail(ExitCode::storage, "{}: not a regular file", path_);
  }
  size_ = s.st_size;
}

ReadFile::~ReadFile() { ::close(fd_); }

void ReadFile::read(void* to, int64_t offset, int64_t bytes) const {
  char* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, out, static_cast<size_t>(std::min(bytes, kChunk)), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path_, fmt::format("read at byte {}", offset).c_str(), errno);
    if (n == 0) fail(ExitCode::storage, "{}: ends at byte {}, {} more were expected", path_, offset, bytes);
    out += n;
    offset += n;
    bytes -= n;
    note_progress();
  }
}

std::string ReadFile::hash() const {
  Hasher h;
  std::vector<char> buffer(static_cast<size_t>(std::min(kChunk, std::max<int64_t>(size_, 1))));
  for (int64_t at = 0; at < size_; at += static_cast<int64_t>(buffer.size())) {
    const int64_t n = std::min<int64_t>(static_cast<int64_t>(buffer.size()), size_ - at);
    read(buffer.data(), at, n);
    h.add(buffer.data(), static_cast<size_t>(n));
  }
  return h.hex();
}

std::string read_text_file(const std::string& path, int64_t most_bytes) {
  const ReadFile file(path);
  if (file.size() > most_bytes)
    fail(ExitCode::storage, "{}: {} bytes; at most {} are expected", path, file.size(), most_bytes);
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(text.data(), 0, file.size());
  return text;
}

void write_text_file(const std::string& path, const std::string& text) {
  NewFile file(path);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.sync();
  file.close();
}

void make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_errno(path, "create folder", error.value());
  struct stat s;
  if (::stat(path.c_str(), &s) != 0 || !S_ISDIR(s.st_mode)) fail_errno(path, "create folder", ENOTDIR);
}

std::string check_folder_can_be_made(const std::string& path) {
  std::filesystem::path there = std::filesystem::absolute(path);
  struct stat s;
  while (::stat(there.c_str(), &s) != 0) {
    if (errno != ENOENT || !there.has_relative_path()) fail_errno(there.string(), "create folder", errno);
    there = there.parent_path();
  }
  if (!S_ISDIR(s.st_mode)) fail_errno(there.string(), "create folder", ENOTDIR);
  if (::access(there.c_str(), W_OK | X_OK) != 0) fail_errno(there.string(), "write in folder", errno);
  return there.string();
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_errno(path, "open folder", errno);
  const int result = ::fsync(fd), error = errno;
  ::close(fd);
  // Some network file systems do not support fsync of folders and keep names in order themselves.
  if (result != 0 && error != EINVAL && error != ENOTSUP) fail_errno(path, "fsync folder", error);
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    fail_errno(from, fmt::format("rename to {}", to).c_str(), errno);
}

void rename_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
    fail_errno(from, fmt::format("rename to {}", to).c_str(), errno);
  // For a file system without this operation (NFS). The folder's lock keeps other runs away between the check
  // and the rename.
  struct stat s;
  if (::lstat(to.c_str(), &s) == 0) fail_errno(from, fmt::format("rename to {}", to).c_str(), EEXIST);
  rename_path(from, to);
}

void remove_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) fail_errno(path, "remove", error.value());
}

bool path_exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

int64_t file_size(const std::string& path) {
  struct stat s;
  return ::stat(path.c_str(), &s) == 0 && S_ISREG(s.st_mode) ? s.st_size : -1;
}

std::vector<std::string> list_folder(const std::string& path) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(path.c_str());
  if (!dir) {
    if (errno == ENOENT || errno == ENOTDIR) return names;
    fail_errno(path, "list", errno);
  }
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

int64_t free_bytes(const std::string& path) {
  struct statvfs s;
  if (::statvfs(path.c_str(), &s) != 0) fail_errno(path, "statvfs", errno);
  return static_cast<int64_t>(s.f_bavail) * static_cast<int64_t>(s.f_frsize);
}

}  // namespace ltrain
