// The lines of a metrics.jsonl, read one by one in bounded memory.
#pragma once
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "base/json/json.h"

namespace ltrain {

class MetricsLines {
 public:
  /// `path`: the file. Throws Error (data) if it cannot be read.
  explicit MetricsLines(std::string path);
  /// Reads the next line, a JSON object. Returns false at the end, which an incomplete last line is, too.
  /// Throws Error (data) with file and line for contents that no run writes.
  bool next(nlohmann::json& object);
  /// The last line is incomplete: the run is writing it, or died.
  bool cut_off() const { return cut_off_; }
  /// Throws Error (data) with file and line.
  [[noreturn]] void wrong(const std::string& what) const;
  /// A number of the line; nothing if it is null (NaN) or absent.
  std::optional<double> number(const nlohmann::json& line, const char* key) const;
  int64_t whole_number(const nlohmann::json& line, const char* key) const;

 private:
  bool read(std::string& text);
  std::string path_;
  std::ifstream in_;
  int64_t at_ = 0;
  bool cut_off_ = false;
};

}  // namespace ltrain
