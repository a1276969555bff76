// A file to which a running job appends records, also across periods with a full disk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

/// Records that cannot be written are kept in memory and written later, from the byte where writing stopped.
/// No record is torn or missing. Not thread-safe.
class AppendFile {
 public:
  /// Opens `path` for appending, and truncates it first if `truncate`. Throws Error (storage) if that fails.
  AppendFile(const std::string& path, bool truncate, size_t most_waiting_bytes = size_t{16} << 20);
  ~AppendFile();  ///< tries once more, then truncates the file to its last complete record
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Writes a record after the waiting ones. Drops it if more than `most_waiting_bytes` are waiting.
  void append(std::string_view record);
  void retry();   ///< writes waiting records as far as there is room
  void finish();  ///< like retry(); notes() then reports what is lost

  /// Sentences for the user since the last call: the reason why writing fails, or that it works again.
  std::vector<std::string> notes();

 private:
  std::string path_;
  int fd_ = -1;
  size_t most_;
  std::string waiting_;
  std::vector<size_t> sizes_;  // sizes of waiting records; for the first one the unwritten rest
  int64_t whole_ = 0;          // bytes of the file up to the last complete record
  int64_t dropped_ = 0;        // records dropped since writing failed
  bool failing_ = false;
  std::vector<std::string> notes_;
};

}  // namespace ltrain
