// The form of an input file, from its content and its name.
#pragma once
#include <string>

#include "runtime/data/input/jsonl.h"
#include "runtime/data/input/record_file.h"

namespace ltrain::data {

struct InputForm {
  enum Kind : uint8_t { text, json, records, empty, binary, unsupported };
  Kind kind = text;
  RecordForm json_form = RecordForm::none;  ///< kind json
  const records::Format* format = nullptr;  ///< kind records
  bool json_as_text = false;                ///< named .json, but without records
  bool describes = false;                   ///< text that describes a dataset: a README.md with its settings
  std::string why = {};                     ///< binary, unsupported: the reason, and what would work
};

/// Form of `source` by its first bytes. Kind text: text or JSON, which json_or_text() tells apart.
InputForm form_by_head(const records::Source& source, const RecordOptions& options);

/// Form of a file that is text or JSON. `given`: named explicitly, not found in a folder. Throws Error (data)
/// if the file has no form that `options` allow.
InputForm json_or_text(const records::Source& source, bool given, const RecordOptions& options);

/// Returns whether the name says JSONL.
bool named_as_lines(const records::Source& source);

}  // namespace ltrain::data
