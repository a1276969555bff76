#include "runtime/launch/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/limits.h"
#include "base/printable.h"
#include "parallel/comm/socket.h"

namespace ltrain {

FolderLock::FolderLock(const std::string& folder, const std::string& use) {
  const std::string path = folder + "/.lock";
  const auto refuse = [&](const std::string& why) { fail(ExitCode::storage, "{}: {}", path, why); };
  // Another user with write access to the folder must not redirect the write to another file, neither with a
  // symbolic nor a hard link.
  fd_ = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0644));
  if (!fd_.valid() && errno == ELOOP)
    refuse("is a symbolic link, where a lock file is a file of its own: remove it");
  if (!fd_.valid() && (errno == EMFILE || errno == ENFILE)) fail_system(path, errno, ExitCode::storage);
  if (!fd_.valid())
    refuse(
        fmt::format("cannot be opened: {}; choose an output_dir that can be written", std::strerror(errno)));
  struct stat s {};
  if (::fstat(fd_.get(), &s) != 0 || !S_ISREG(s.st_mode)) refuse("is not a regular file: remove it");
  if (s.st_nlink > 1) refuse("has another name, where a lock file is a file of its own: remove it");
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error == ENOLCK || error == ENOTSUP || error == EINVAL || error == ENOSYS) return;
    if (error != EWOULDBLOCK) refuse(fmt::format("lock: {}", std::strerror(error)));
    char owner[128];
    const ssize_t n = ::pread(fd_.get(), owner, sizeof owner, 0);
    fail(ExitCode::storage, "{}: another run {} ({}); stop it, or give this run another output_dir", folder,
         use, n > 0 ? printable({owner, static_cast<size_t>(n)}) : "unknown");
  }
  held_ = true;
  const std::string owner = fmt::format("process {} on {}", ::getpid(), host_name());
  if (::ftruncate(fd_.get(), 0) == 0) (void)!::pwrite(fd_.get(), owner.data(), owner.size(), 0);
}

FolderLock lock_output(const std::string& output_dir) {
  std::error_code error;
  std::filesystem::create_directories(output_dir, error);
  if (error) fail(ExitCode::storage, "output_dir {}: {}", output_dir, error.message());
  return FolderLock(output_dir, "uses this folder");
}

}  // namespace ltrain
