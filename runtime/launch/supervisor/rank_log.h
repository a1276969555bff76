// The log of a rank, OUTPUT_DIR/logs/rank-00000.log, of bounded size.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace ltrain {

/// Appends text. When the file would become larger than `most_bytes`, it gets the name PATH.1, in the place
/// of an older one, and a new file begins. Write errors are ignored, because a full disk must not end the
/// run.
class RankLog {
 public:
  RankLog() = default;  ///< closed: writes nothing
  /// `most_bytes`: 0: unbounded. A user with write access to the folder must not be able to redirect the log
  /// or to block the launcher: throws Error (storage) for a link and for anything but a file.
  RankLog(std::string path, int64_t most_bytes);
  bool is_open() const { return file_.valid(); }
  void write(std::string_view text);

 private:
  void rotate();
  std::string path_;
  int64_t most_bytes_ = 0, bytes_ = 0;
  Fd file_;
};

}  // namespace ltrain
