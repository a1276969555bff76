// Helpers of the tests of record files.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/records/format.h"
#include "tests/runtime/data/support.h"

namespace ltrain::records::test {

using Texts = std::vector<std::string>;

/// Opens a file in the format that its content and name give, or in `format`.
inline std::unique_ptr<RecordSource> open(const std::string& path, Selection selection,
                                          const char* format = nullptr) {
  const auto file = std::make_shared<data::InputFile>(path);
  Source source{file, path, compression_of(beginning(file, path, Compression::none, 4))};
  const Format* f =
      format ? format_named(format) : recognise(beginning(file, path, source.compression, 1 << 16), path);
  if (!f) fail(ExitCode::data, "{}: not recognised", path);
  return f->open(source, selection);
}

/// Texts of all records; "NULL", or "!" and the problem.
inline Texts texts_of(RecordSource& source) {
  Texts texts;
  for (Record r; source.next(r);)
    texts.push_back(!r.problem.empty() ? "!" + r.problem : r.null ? "NULL" : r.text);
  return texts;
}

inline Texts texts_of(const std::string& path, const std::string& field, const char* format = nullptr) {
  return texts_of(*open(path, {{field}, false}, format));
}

inline std::vector<std::vector<int32_t>> ids_of(const std::string& path, const std::string& field,
                                                const char* format = nullptr) {
  std::vector<std::vector<int32_t>> ids;
  const auto source = open(path, {{field}, false}, format);
  for (Record r; source->next(r);) ids.push_back(r.has_tokens ? r.tokens : std::vector<int32_t>{-1});
  return ids;
}

}  // namespace ltrain::records::test
