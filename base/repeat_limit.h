// Limits how often lines that repeat are written.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ltrain {

/// Lines are alike if they differ in numbers alone. The first kFirst of them are written, later ones at most
/// every kSeconds, with the number of those that were left out.
class RepeatLimit {
 public:
  static constexpr int64_t kFirst = 5;
  static constexpr double kSeconds = 60;

  /// The line to write now, "TEXT (repeated 312 times since 12:03:04 UTC)" after others were left out; empty:
  /// leave it out. `now`: Unix time in seconds.
  std::string pass(const std::string& text, double now);
  /// The newest of each kind of lines that are left out now, with their numbers. Call it at the end.
  std::vector<std::string> rest();

 private:
  struct Kind {
    int64_t seen = 0, left_out = 0;
    double written = 0, since = 0;  ///< Unix times of the last line written, and of the first one left out
    std::string newest;
  };
  static std::string told(Kind& kind);
  std::map<std::string, Kind> kinds_;  // key: the line without its numbers
};

}  // namespace ltrain
