// Files of checkpoints. Every error is Error (storage) with path, operation and the system's reason.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

struct XXH3_state_s;

namespace ltrain {

/// xxh3-128 hash of a stream of bytes.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void add(const void* data, size_t bytes);
  std::string hex() const;  ///< 32 lower-case digits

 private:
  XXH3_state_s* state_;
};

std::string hash_text(const std::string& text);

/// Writes a new file. Fails if the file exists. The destructor closes it and does not delete it.
class NewFile {
 public:
  explicit NewFile(std::string path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Allocates space on the disk, if the file system supports it.
  void reserve(int64_t bytes);
  void write(const void* data, int64_t bytes);
  void sync();
  void close();  ///< reports errors of close()
  int64_t bytes() const { return bytes_; }
  std::string hash() const { return hasher_.hex(); }  ///< hash of everything written
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0, begun_ = 0;  // bytes written, and bytes of them handed to the disk
  Hasher hasher_;
};

/// A file open for reading. Reads use pread and may run on several threads.
class ReadFile {
 public:
  explicit ReadFile(std::string path);
  ~ReadFile();
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  void read(void* to, int64_t offset, int64_t bytes) const;
  std::string hash() const;  ///< hash of the whole file

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

std::string read_text_file(const std::string& path, int64_t most_bytes);
/// Writes `text` to a new file and syncs it.
void write_text_file(const std::string& path, const std::string& text);
void make_folders(const std::string& path);
/// Checks that the folder `path` can be created, and creates nothing. Returns the nearest existing folder
/// above it. Throws Error (storage).
std::string check_folder_can_be_made(const std::string& path);
void sync_folder(const std::string& path);
void rename_path(const std::string& from, const std::string& to);
/// Renames `from` to `to`, which must not exist. An existing `to` is neither replaced nor removed, and the
/// error names it.
void rename_new(const std::string& from, const std::string& to);
/// Removes a folder and its contents. Missing parts are not an error.
void remove_folder(const std::string& path);
bool path_exists(const std::string& path);
int64_t file_size(const std::string& path);  ///< -1: the file does not exist
/// Names in a folder, sorted; empty if there is no folder.
std::vector<std::string> list_folder(const std::string& path);
/// Bytes that this user can still write on the file system of `path`.
int64_t free_bytes(const std::string& path);

}  // namespace ltrain
