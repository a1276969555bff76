// Output of a launcher: its own lines and those of its ranks. Neither may block on a reader, because a pipe
// that nobody reads or a stopped terminal must not delay the handling of signals.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace ltrain {

/// Converts terminal output to text for a file. Drops escape sequences, and keeps only the last state of a
/// line that is redrawn.
class PlainText {
 public:
  std::string add(std::string_view bytes);  ///< returns the lines that end in `bytes`
  std::string finish();                     ///< returns the rest

 private:
  static constexpr size_t kMostLineBytes = 64 << 10;  // longer lines are split

  std::string line_, escape_;  // text since the last line end; an unfinished escape sequence
  bool returned_ = false;      // the last character was a carriage return
};

/// Sends bytes to a descriptor from its own thread. If the queue is full, whole lines are dropped and
/// counted: "ltrain: 12 lines left out: nobody read them". After a write error everything is dropped.
class OutputRelay {
 public:
  explicit OutputRelay(int fd, size_t most_bytes = 1 << 20);
  ~OutputRelay();  ///< like drain(0.5)
  OutputRelay(const OutputRelay&) = delete;

  void write(std::string_view bytes);  ///< does not block
  /// Waits until everything is written, or no progress was made for `stalled_seconds`. Returns false if
  /// something is left, which will not be written.
  bool drain(double stalled_seconds);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which may block in write() forever
};

}  // namespace ltrain
