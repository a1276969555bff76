#include "runtime/objects/object_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/limits.h"
#include "runtime/objects/download.h"

namespace fs = std::filesystem;

namespace ltrain::objects {
namespace {

constexpr const char* kPart = ".part";
constexpr const char* kLock = ".lock";

/// Takes the lock of a copy: LOCK_EX to make or delete it, LOCK_SH to read it. Invalid if another process has
/// it. A lock file that was deleted meanwhile is opened again.
Fd try_lock(const std::string& path, int kind) {
  for (;;) {
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd.valid()) fail_system(path + ": cannot be opened", errno, ExitCode::storage);
    if (::flock(fd.get(), kind | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return {};
      fail_system(path +
                      ": cannot be locked; data.cache and LTRAIN_CACHE_DIR choose a folder whose file system "
                      "has locks",
                  errno, ExitCode::storage);
    }
    struct stat mine {
    }, named{};
    if (::fstat(fd.get(), &mine) == 0 && ::stat(path.c_str(), &named) == 0 && mine.st_ino == named.st_ino &&
        mine.st_dev == named.st_dev)
      return fd;
  }
}

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

/// Waits for the lock; invalid once `stop` is set.
Fd wait_lock(const std::string& path, int kind, const std::atomic<bool>* stop) {
  for (;; pause()) {
    Fd fd = try_lock(path, kind);
    if (fd.valid() || (stop && *stop)) return fd;
  }
}

std::string name_of(const Object& object) {
  const std::string text = object.identity();
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

struct Copy {
  std::string path;  ///< without .part
  std::string file;
  int64_t bytes = 0;  ///< on the disk, reserved ones too
  timespec used{};
};

std::vector<Copy> copies_in(const std::string& folder) {
  std::vector<Copy> copies;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string file = it->path().string();
    struct stat st {};
    if (file.ends_with(kLock) || ::lstat(file.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) continue;
    const bool part = file.ends_with(kPart);
    copies.push_back({part ? file.substr(0, file.size() - std::string_view(kPart).size()) : file, file,
                      std::max<int64_t>(st.st_size, int64_t{st.st_blocks} * 512), st.st_mtim});
  }
  std::sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  return copies;
}

/// A file that is open under a lock, so that it is not deleted.
struct Locked {
  Locked(Fd held, const std::string& path) : lock(std::move(held)), file(path) {}
  Fd lock;
  data::InputFile file;
};

/// Opens a complete copy under its shared lock; nothing if there is none.
std::shared_ptr<data::InputFile> open_copy(const std::string& path, int64_t size, Fd lock) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0 || st.st_size != size) return nullptr;
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // time of the last use
  auto locked = std::make_shared<Locked>(std::move(lock), path);
  return {locked, &locked->file};
}

std::string folder_of(const CacheOptions& options) {
  if (!options.folder.empty()) return options.folder;
  const std::string folder = cache_folder();
  if (folder.empty())
    fail(ExitCode::usage,
         "no folder for copies of objects, because neither LTRAIN_CACHE_DIR nor HOME is set; set one");
  return folder + "/objects";
}

int64_t bound_of(const CacheOptions& options, const std::string& folder) {
  if (options.most_bytes > 0) return options.most_bytes;
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error) fail(ExitCode::storage, "{}: its free space is not known: {}", folder, error.message());
  int64_t have = 0;
  for (const Copy& copy : copies_in(folder)) have += copy.bytes;
  return (static_cast<int64_t>(space.available) + have) / 2;
}

Fd open_part(const std::string& part) {
  Fd fd(::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd.valid()) fail_system(part + ": cannot be created", errno, ExitCode::storage);
  return fd;
}

/// Reserves the object's space on the disk, which others then count. Not every file system can.
void reserve(const Object& object, const std::string& part) {
  const Fd fd = open_part(part);
  if (object.size > 0 && ::fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, object.size) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
    fail_system(fmt::format("{}: {} bytes for a copy of {}", part, object.size, object.name()), errno,
                ExitCode::storage);
}

/// Downloads the object and gives it its name. Returns false once `stop` is set. Called under the lock.
bool make_copy(const Object& object, const std::string& path, const std::atomic<bool>* stop) {
  ObjectStore store(object.url);
  const std::string part = path + kPart;
  for (int attempt = 0;; ++attempt) {
    const Fd fd = open_part(part);
    if (!download(store, object, fd.get(), part, stop)) return false;
    const std::string difference = checksum_difference(store, object, part);
    if (difference.empty()) break;
    // The beginning may be of a download that lost its last writes.
    ::unlink(part.c_str());
    if (attempt > 0)
      fail(ExitCode::storage, "{}: the bytes that came are not those of the object, twice: {}. Start again",
           object.name(), difference);
  }
  if (::rename(part.c_str(), path.c_str()) != 0)
    fail_system(part + ": cannot be renamed", errno, ExitCode::storage);
  return true;
}

}  // namespace

bool make_room(const std::string& folder, int64_t most_bytes, int64_t bytes, const std::string& keep) {
  const std::vector<Copy> copies = copies_in(folder);
  int64_t have = 0;
  for (const Copy& copy : copies)
    if (fs::path(copy.path).filename() != keep) have += copy.bytes;
  for (const Copy& copy : copies) {
    if (have + bytes <= most_bytes) break;
    if (fs::path(copy.path).filename() == keep) continue;
    const Fd lock = try_lock(copy.path + kLock, LOCK_EX);
    if (!lock.valid()) continue;
    if (::unlink(copy.file.c_str()) == 0) have -= copy.bytes;
    if (!data::file_exists(copy.path) && !data::file_exists(copy.path + kPart))
      ::unlink((copy.path + kLock).c_str());
  }
  return have + bytes <= most_bytes;
}

std::shared_ptr<data::InputFile> open_object(const Object& object, const CacheOptions& options, bool optional,
                                             const std::atomic<bool>* stop) {
  const std::string folder = folder_of(options), name = name_of(object), path = folder + "/" + name;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ExitCode::storage, "{}: the folder cannot be made: {}", folder, error.message());
  while (!(stop && *stop)) {
    Fd shared = optional ? try_lock(path + kLock, LOCK_SH) : wait_lock(path + kLock, LOCK_SH, stop);
    if (!shared.valid()) return nullptr;
    if (auto file = open_copy(path, object.size, std::move(shared))) return file;
    Fd lock = optional ? try_lock(path + kLock, LOCK_EX) : wait_lock(path + kLock, LOCK_EX, stop);
    if (!lock.valid()) return nullptr;
    struct stat st {};
    if (::stat(path.c_str(), &st) == 0 && st.st_size == object.size) continue;  // made by another process
    const int64_t most = bound_of(options, folder);
    if (object.size > most && !optional)
      fail(ExitCode::usage,
           "{}: {} bytes, expected at most {}, which copies of objects may have on this disk; a larger bound "
           "is "
           "data.object_cache_gb (--object-cache-gb), another folder data.cache (LTRAIN_CACHE_DIR)",
           object.name(), object.size, most);
    // One process at a time counts what is there.
    const bool fits = [&] {
      const Fd room = wait_lock(folder + "/room" + kLock, LOCK_EX, stop);
      if (!room.valid()) return false;
      const bool there_is = make_room(folder, most, object.size, name);
      if (there_is || !optional) reserve(object, path + kPart);
      return there_is;
    }();
    if ((optional && !fits) || (stop && *stop)) return nullptr;
    if (!make_copy(object, path, stop)) return nullptr;
  }
  return nullptr;
}

}  // namespace ltrain::objects
