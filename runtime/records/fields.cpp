#include "runtime/records/fields.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/printable.h"

namespace ltrain::records {
namespace {

std::string list_of(const std::vector<FieldInfo>& fields) {
  std::string text;
  for (const FieldInfo& f : fields) {
    if (text.size() > 500) return text + ", ...";
    text += (text.empty() ? "" : ", ") + printable(f.name, 80);
    if (!f.type.empty()) text += " (" + printable(f.type, 80) + ")";
  }
  return text.empty() ? "none" : text;
}

[[noreturn]] void refuse_missing(const std::vector<FieldInfo>& fields, const std::string& wanted,
                                 const std::string& name, const char* option) {
  std::vector<std::string> names;  // few and short ones, since the file chose them
  for (const FieldInfo& f : fields)
    if (f.name.size() <= 80 && names.size() < 10'000) names.push_back(f.name);
  const std::string nearest = nearest_word(wanted, names);
  fail(ExitCode::data, "{}: no field \"{}\"; the fields are {}{}. Name one with {}", name,
       printable(wanted, 80), list_of(fields),
       nearest.empty() ? "" : fmt::format("; the nearest is \"{}\"", printable(nearest, 80)), option);
}

/// Number of the field with this name; fields.size(): none. Throws Error (data) for two.
size_t field_named(const std::vector<FieldInfo>& fields, std::string_view wanted, const std::string& name) {
  size_t found = fields.size();
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].name != wanted) continue;
    if (found < fields.size())
      fail(ExitCode::data, "{}: two fields have the name \"{}\"", name, printable(std::string(wanted), 80));
    found = i;
  }
  return found;
}

}  // namespace

std::vector<size_t> select_fields(const std::vector<FieldInfo>& fields, const Selection& selection,
                                  const std::string& name) {
  LT_CHECK(selection.as_json || selection.fields.size() == 1, "expected one field for text, got {}",
           selection.fields.size());
  std::vector<size_t> chosen;
  for (const std::string& wanted : selection.fields) {
    size_t found = field_named(fields, wanted, name);
    if (const size_t dot = wanted.find('.');
        found == fields.size() && selection.as_json && dot != wanted.npos)
      found = field_named(fields, std::string_view(wanted).substr(0, dot), name);
    if (found == fields.size()) refuse_missing(fields, wanted, name, selection.option);
    if (std::find(chosen.begin(), chosen.end(), found) != chosen.end()) continue;
    chosen.push_back(found);
  }
  for (size_t i = 0; selection.fields.empty() && i < fields.size(); ++i) chosen.push_back(i);
  if (chosen.empty()) fail(ExitCode::data, "{}: the file has no fields", name);
  return chosen;
}

void refuse_type(const FieldInfo& field, const std::string& name) {
  fail(ExitCode::data,
       "{}: field \"{}\" has the type {}; expected string or binary for text, or a list of integers for "
       "tokens",
       name, printable(field.name, 80), printable(field.type, 200));
}

}  // namespace ltrain::records
