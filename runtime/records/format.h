// Formats of record files: recognition by content, and a row for each in one table.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/records/encodings/byte_stream.h"
#include "runtime/records/record_source.h"

namespace ltrain::records {

/// A file to read records from.
struct Source {
  std::shared_ptr<const data::InputFile> file;
  std::string name;  ///< for messages
  Compression compression = Compression::none;
};

/// One row for each format. A new format is a file and a row.
struct Format {
  const char* name;           ///< value of --input-format
  const char* default_field;  ///< field of the text that is read unless another one is asked for
  /// Returns whether a file is of this format by its first 64 KiB, decompressed. Null: never by content.
  bool (*recognise)(std::string_view head);
  const char* extension;  ///< names that make a file one of this format whatever it begins with; null: none
  std::unique_ptr<RecordSource> (*open)(const Source& source, const Selection& selection);
};

const std::vector<Format>& formats();

/// Format of a file; null: none of the table, such as text or JSON. `path`: name with its extension, without
/// that of the compression.
const Format* recognise(std::string_view head, const std::string& path);

/// Format with this name; null: there is none.
const Format* format_named(std::string_view name);

}  // namespace ltrain::records
