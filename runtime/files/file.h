// Files of token data. Reads use pread and not mmap: if a file is truncated during training, pread gives an
// error with name and offset, while a mapped page would end the process with SIGBUS.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ltrain::data {

/// A regular file open for reading. Const methods may run on several threads at once.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  ///< bytes when opened

  /// Reads exactly `bytes` bytes at `offset`. Throws Error (data) with path and offset if the file is
  /// shorter.
  void read(void* to, int64_t offset, int64_t bytes) const;
  /// Reads up to `bytes` bytes at `offset`; fewer only at the end of the file.
  int64_t read_some(void* to, int64_t offset, int64_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

/// A file that gets its name only in commit(). Errors are Error (storage). Until then it has no name, so even
/// a killed process leaves nothing behind. On file systems without unnamed files it is PATH.tmp-PID, which
/// the destructor removes.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* from, int64_t bytes);
  int64_t bytes() const { return bytes_; }  ///< bytes written so far
  void flush();                             ///< writes buffered data to the kernel
  void sync();                              ///< writes buffered data to the disk
  void commit();                            ///< syncs, then renames
  std::string path_before_commit() const;   ///< path for reading the data flushed so far

 private:
  std::string path_, temporary_;
  int fd_ = -1;
  bool named_ = false;  // the file exists under temporary_
  int64_t bytes_ = 0;
  std::vector<char> buffer_;
};

bool file_exists(const std::string& path);
/// Reads a whole file. Throws Error (data) if it has more than `most_bytes` bytes.
std::string read_whole(const std::string& path, int64_t most_bytes);

}  // namespace ltrain::data
