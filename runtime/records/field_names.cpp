#include "runtime/records/field_names.h"

#include "base/error.h"
#include "base/printable.h"

namespace ltrain::records {

void no_such_field(const std::string& file, const std::string& field, const std::vector<std::string>& fields) {
  constexpr size_t kNamed = 20;
  std::string names;
  for (size_t i = 0; i < fields.size() && i < kNamed; ++i)
    names += (i ? ", " : "") + printable(fields[i], 60);
  if (fields.size() > kNamed) names += fmt::format(", and {} more", fields.size() - kNamed);
  fail(ExitCode::data, "{}: no field \"{}\"; the file has: {}. Name the field of the text with --field (in a "
       "recipe: text)", file, printable(field, 60), names.empty() ? "none" : names);
}

}  // namespace ltrain::records
