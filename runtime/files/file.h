// Files of token data. Reads are pread, never mmap: a file that is cut short while we train then gives an
// error with its name and offset, where a mapped page would end the process with SIGBUS.
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
  int64_t size() const { return size_; }  ///< bytes, when opened

  /// Reads exactly `bytes` bytes at `offset`; Error (data) with path and offset when they are not there.
  void read(void* to, int64_t offset, int64_t bytes) const;
  /// Reads up to `bytes` bytes at `offset`; fewer only at the end of the file.
  int64_t read_some(void* to, int64_t offset, int64_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

/// A file that appears under its name only when commit() returns. Errors are of storage. Until then it has no
/// name at all, so that even a kill leaves nothing; on file systems without such files it is PATH.tmp-PID,
/// which the destructor removes.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* from, int64_t bytes);
  int64_t bytes() const { return bytes_; }  ///< written so far
  void flush();                             ///< to the kernel
  void sync();                              ///< to the disk
  void commit();                            ///< sync, then rename
  std::string path_before_commit() const;   ///< opens what was flushed so far

 private:
  std::string path_, temporary_;
  int fd_ = -1;
  bool named_ = false;  // has temporary_ as its name
  int64_t bytes_ = 0;
  std::vector<char> buffer_;
};

bool file_exists(const std::string& path);

}  // namespace ltrain::data
