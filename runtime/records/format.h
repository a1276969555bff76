// Formats of record files: recognition by content, and a row for each in one table.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
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

/// A format, which its file describes: a new one is a file with NAME_format(), and NAME in the list of
/// format.cpp.
struct Format {
  const char* name = "";           ///< value of --input-format
  const char* default_field = "";  ///< field of the text that is read unless another one is asked for
  /// Returns whether a file is of this format by its first 64 KiB, decompressed. Null: never by content.
  bool (*recognise)(std::string_view head) = nullptr;
  const char* extension =
      nullptr;  ///< names that make a file one of this format whatever it begins with; null: none
  std::unique_ptr<RecordSource> (*open)(const Source& source, const Selection& selection) = nullptr;
};

const std::vector<Format>& formats();

/// Format::open for a format that is read from its begin to its end.
template <auto open>
std::unique_ptr<RecordSource> streamed(const Source& s, const Selection& selection) {
  return open(open_stream(s.file, s.name, s.compression), s.name, selection);
}

/// `open` of streamed(), for a class of records.
template <class Records>
std::unique_ptr<RecordSource> open_stream_of(std::unique_ptr<ByteStream> stream, std::string name,
                                             const Selection& selection) {
  return std::make_unique<Records>(std::move(stream), std::move(name), selection);
}

/// Throws Error (data) for a compressed file.
void check_any_offset(const Source& source);

/// Format::open for a format that is read at any offset.
template <auto open>
std::unique_ptr<RecordSource> at_any_offset(const Source& s, const Selection& selection) {
  check_any_offset(s);
  return open(s.file, s.name, selection);
}

/// Format of a file; null: none of the table, such as text or JSON. `path`: name with its extension, without
/// that of the compression.
const Format* recognise(std::string_view head, const std::string& path);

/// Format with this name; null: there is none.
const Format* format_named(std::string_view name);

}  // namespace ltrain::records
