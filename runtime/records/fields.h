// Fields of files with columns: names, types, and the choice of fields.
#pragma once
#include <string>
#include <vector>

#include "runtime/records/record_source.h"

namespace ltrain::records {

struct FieldInfo {
  std::string name, type;  ///< type as text: "string", "list<int32>"; "": the file has none
};

struct FileSchema {
  int64_t rows = 0;
  std::vector<FieldInfo> fields;
};

/// Indices of the selected fields, in the order of `selection`; all fields for none with as_json. Throws
/// Error (data) for a missing field, with the fields that exist and the nearest.
std::vector<size_t> select_fields(const std::vector<FieldInfo>& fields, const Selection& selection,
                                  const std::string& name);

/// Throws Error (data): a field cannot be text or tokens.
[[noreturn]] void refuse_type(const FieldInfo& field, const std::string& name);

}  // namespace ltrain::records
