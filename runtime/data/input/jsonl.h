// JSON records: extraction of one string from each, and repair of invalid characters.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/data/input/record_options.h"

namespace ltrain::data {

/// Returns the string at the top-level `key` of the object in `line`. NaN and Infinity, which Python's json
/// writes, are accepted as numbers. Throws Error (data) with `path` and `line_number` if `line` is not one
/// JSON object in UTF-8, or the key is missing, repeated, or not a string.
std::string json_text(std::string_view line, const std::string& key, const std::string& path,
                      int64_t line_number);

/// The same string of an ordinary record, by simdjson, at the rate of memory: valid everywhere, with the key
/// once, and a string there. nullopt for any other line, which json_text() then reads with a slower parser,
/// to say what is wrong or to accept what simdjson does not: integers above 64 bits, NaN, more than 1024
/// levels, a byte order mark, more than 16 MiB.
std::optional<std::string> ordinary_text(std::string_view line, const std::string& key);

/// Like json_text(), but returns nullopt for a bad record that `options` skips, and counts it in `bad`.
std::optional<std::string> read_record(std::string_view line, const RecordOptions& options,
                                       const std::string& path, int64_t line_number, BadRecords& bad);

/// `line` with invalid UTF-8 bytes and unpaired surrogate escapes replaced by U+FFFD.
std::string repair_record(std::string_view line);

/// `line` with NaN, Infinity and -Infinity outside strings, which Python's json writes, as texts in quotes.
std::string with_quoted_nan(std::string_view line);

struct RecordShape {
  bool object = false;  ///< one complete JSON object, after repair_record()
  bool has_key = false;
  std::string keys;   ///< the first keys, for messages
  std::string error;  ///< reason why it is not an object
};
RecordShape record_shape(std::string_view line, const std::string& key);

}  // namespace ltrain::data
