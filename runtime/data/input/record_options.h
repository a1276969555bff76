// Options of commands that read records, and treatment of records that cannot be read.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/input/dataset_folder.h"
#include "runtime/data/input/on_bad_record.h"
#include "runtime/data/input/record_filter.h"
#include "runtime/objects/object_cache.h"
#include "runtime/records/format.h"

namespace ltrain::data {

enum class InputFormat : uint8_t {
  automatic,  ///< chosen by content, and by names that indicate JSON
  text,       ///< each file is one document, regardless of its content
  json,       ///< each file must contain JSON records
};

struct RecordOptions {
  std::optional<std::string> field;  ///< field of the text; if set, every input contains records
  InputFormat format = InputFormat::automatic;
  const records::Format* record_format = nullptr;  ///< if set, every input is of this format
  OnBadRecord on_bad = OnBadRecord::stop;
  bool whole = false;             ///< a record is read whole, as JSON, and not one field of it
  RecordFilter where;             ///< records to keep; if set, every input contains records
  DatasetPart dataset;            ///< part of a folder to read
  objects::CacheOptions objects;  ///< local copies of inputs that are URLs

  std::string key() const { return field.value_or("text"); }
  bool must_be_records() const { return field || whole || !where.empty() || format == InputFormat::json; }
};

/// Throws Error (usage) for an empty field, and for a field together with the format text.
void check_record_options(const RecordOptions& options);

struct BadRecords {
  int64_t skipped = 0, replaced = 0;
  std::vector<std::string> first;  ///< messages of the first kNamed bad records, with file and line
  static constexpr size_t kNamed = 5;

  void add(std::string message);
  void add(const BadRecords& later);
};

/// `text` of a record at `position` in `path`. Invalid UTF-8 is treated as `options` say.
std::optional<std::string> read_text_record(std::string_view text, const RecordOptions& options,
                                            const std::string& path, const std::string& position,
                                            BadRecords& bad);

/// Stops at a bad record, or counts it as skipped, as `options` say.
void skip_record(const std::string& message, const RecordOptions& options, BadRecords& bad);

}  // namespace ltrain::data
