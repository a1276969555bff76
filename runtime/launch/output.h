// What a launcher prints: lines of its own, and what its ranks write. Neither may wait for a reader: a pipe
// that nobody reads, or a terminal that is stopped, must not keep a signal from being seen.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace ltrain {

/// Text for people, each of its lines made printable (base/printable.h), with a line end.
std::string printable_lines(std::string_view text);

/// Turns bytes for a terminal into text for a file: drops escape sequences, and keeps the last state of a
/// line that was drawn over in place.
class PlainText {
 public:
  std::string add(std::string_view bytes);  ///< the lines that end in `bytes`
  std::string finish();                     ///< the rest

 private:
  static constexpr size_t kMostLineBytes = 64 << 10;  // a longer line is given out in parts

  std::string line_, escape_;  // since the last line end; an escape sequence that has begun
  bool returned_ = false;      // a carriage return came, and nothing after it yet
};

/// Writes such lines to stderr; drops what finds no room there within a second.
void print_lines(std::string_view text);

/// Bytes on their way to a descriptor, from a thread of its own. What finds no room is dropped, in whole
/// lines, and counted: "ltrain: 12 lines left out: nobody read them". A descriptor that breaks takes
/// everything from then on.
class OutputRelay {
 public:
  explicit OutputRelay(int fd, size_t most_bytes = 1 << 20);
  ~OutputRelay();  ///< as drain(0.5)
  OutputRelay(const OutputRelay&) = delete;

  void write(std::string_view bytes);  ///< never waits
  /// Until all is written, or nothing was for so long. False: something is left, and will not be written.
  bool drain(double stalled_seconds);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too, which may be stuck in a write() for ever
};

}  // namespace ltrain
