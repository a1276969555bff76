// A file that grows by whole records while a run goes on, and outlives a disk that is full for a while.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

/// A record that finds no room is kept in memory and written later, from the byte on where it stopped, so
/// that no record is torn and none is missing. Used by one thread.
class AppendFile {
 public:
  /// Opens `path` for appending, after truncating it where `truncate`. Error (storage) when it cannot be.
  AppendFile(const std::string& path, bool truncate, size_t most_waiting_bytes = size_t{16} << 20);
  ~AppendFile();  ///< tries once more; what still finds no room is cut back to the last whole record
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Writes a record, after those that wait. Beyond `most_waiting_bytes` of waiting records it is dropped.
  void append(std::string_view record);
  void retry();   ///< writes what waits, as far as there is room
  void finish();  ///< as retry(); notes() then says what is missing for good

  /// Sentences for the user since the last call: that writing fails and why, that it works again.
  std::vector<std::string> notes();

 private:
  std::string path_;
  int fd_ = -1;
  size_t most_;
  std::string waiting_;
  std::vector<size_t> sizes_;  // of the waiting records; of the first one what is left of it
  int64_t whole_ = 0;          // bytes of the file up to the last whole record
  int64_t dropped_ = 0;        // records since writing failed
  bool failing_ = false;
  std::vector<std::string> notes_;
};

}  // namespace ltrain
