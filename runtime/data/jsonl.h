// JSON records: one string out of each, and what happens to records that cannot be read.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::data {

enum class InputFormat : uint8_t {
  automatic,  ///< by content, and by names that say JSON
  text,       ///< each file is one document, whatever it holds
  json,       ///< each file holds JSON records, or is refused
};

enum class OnBadRecord : uint8_t {
  stop,     ///< the first bad record ends the command
  skip,     ///< bad records are left out, counted and named
  replace,  ///< invalid UTF-8 and unpaired surrogates become U+FFFD; other bad records are left out
};

struct RecordOptions {
  std::optional<std::string> json_key;  ///< set: every input holds JSON records
  InputFormat format = InputFormat::automatic;
  OnBadRecord on_bad = OnBadRecord::stop;

  std::string key() const { return json_key.value_or("text"); }
  bool must_be_json() const { return json_key || format == InputFormat::json; }
};

/// Error (usage) for an empty key, and for a key together with the format text.
void check_record_options(const RecordOptions& options);

struct BadRecords {
  int64_t skipped = 0, replaced = 0;
  std::vector<std::string> first;  ///< messages of the first kNamed ones, with file and line
  static constexpr size_t kNamed = 5;

  void add(std::string message);
  void add(const BadRecords& later);
};

/// The string under the top-level `key` of the object in `line`. NaN and Infinity, which Python's json
/// writes, are accepted as numbers. Error (data), naming `path` and `line_number`, for what is not one JSON
/// object in UTF-8, lacks the key, has it twice, or has something else under it.
std::string json_text(std::string_view line, const std::string& key, const std::string& path,
                      int64_t line_number);

/// json_text(), or nothing for a bad record that `options` leave out; `bad` counts it.
std::optional<std::string> read_record(std::string_view line, const RecordOptions& options,
                                       const std::string& path, int64_t line_number, BadRecords& bad);

/// `line` with each byte outside UTF-8 and each unpaired surrogate escape replaced by U+FFFD.
std::string repair_record(std::string_view line);

struct RecordShape {
  bool object = false;  ///< one complete JSON object, after repair_record()
  bool has_key = false;
  std::string keys;   ///< the first ones, for messages
  std::string error;  ///< why it is no object
};
RecordShape record_shape(std::string_view line, const std::string& key);

}  // namespace ltrain::data
