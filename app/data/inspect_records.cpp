#include "app/data/inspect_records.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "app/data/shown_lengths.h"
#include "app/print_notes.h"
#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"

namespace ltrain::app {
namespace {

using Json = nlohmann::ordered_json;
using data::RecordForm, data::TextFile;

constexpr int64_t kRecords = 10000;

struct Seen {
  std::string format;
  int64_t records = 0, nulls = 0, bad = 0;
  bool complete = false;                                              // all records were read
  std::vector<std::pair<std::string, std::set<std::string>>> fields;  // names and the types of their values
  data::LengthStats lengths;                                          // lengths of the field, in `unit`
  std::string unit;
  std::vector<std::string> first;  // records as JSON
  std::vector<std::vector<int32_t>> first_tokens;
  std::string first_problem;
};

std::string format_name(const TextFile& f) {
  if (f.format) return f.format->name;
  return f.form == RecordForm::lines ? "jsonl" : f.form == RecordForm::array ? "json array" : "text";
}

/// Type of a value, such as "text" or "list of integer".
std::string type_name(const Json& value) {
  if (value.is_string()) return "text";
  if (value.is_boolean()) return "true or false";
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  if (value.is_null()) return "null";
  if (value.is_object()) return "object";
  return value.empty() ? "list" : "list of " + type_name(value.front());
}

/// Adds the types of a record's fields to those seen before.
void add_fields(Seen& seen, const Json& record) {
  for (const auto& [key, value] : record.items()) {
    if (key == "__key__") continue;
    auto known = std::find_if(seen.fields.begin(), seen.fields.end(),
                              [&name = key](const auto& field) { return field.first == name; });
    if (known == seen.fields.end()) {
      if (seen.fields.size() >= 100) continue;
      known = seen.fields.insert(known, {key, {}});
    }
    if (known->second.size() < 4) known->second.insert(type_name(value).substr(0, 60));
  }
}

std::string types_of(const std::set<std::string>& types) {
  return fmt::format("{}", fmt::join(types, " or "));
}

/// Adds one record, as a JSON object.
void add(Seen& seen, const std::string& text, const std::string& field, const InspectRecordsOptions& o) {
  const Json record = Json::parse(text, nullptr, false);
  if (!record.is_object()) {
    ++seen.bad;
    if (seen.first_problem.empty()) seen.first_problem = "not a JSON object";
    return;
  }
  add_fields(seen, record);
  const auto found = record.find(field);
  if (found == record.end() || found->is_null()) {
    ++seen.nulls;
    return;
  }
  std::vector<int32_t> ids;
  const bool encoded = found->is_string() && o.tokenizer;
  if (encoded) o.tokenizer->encode(found->get_ref<const std::string&>(), ids);
  seen.unit = encoded || found->is_array() ? "tokens" : "bytes of text";
  seen.lengths.add(static_cast<int64_t>(encoded              ? ids.size()
                                        : found->is_string() ? found->get_ref<const std::string&>().size()
                                        : found->is_array()  ? found->size()
                                                             : 0));
  if (o.tokens && encoded && static_cast<int64_t>(seen.first_tokens.size()) < o.show)
    seen.first_tokens.push_back(std::move(ids));
}

/// Calls `take(text, problem)` with each record as JSON until it returns false. Returns false then.
template <class Take>
bool each_record(const TextFile& f, Take take) {
  if (f.format) {
    const auto source = f.format->open(f.source(), {{}, true});
    for (records::Record r; source->next(r);)
      if (!take(r.text, r.problem.empty() ? "" : source->position() + ": " + r.problem)) return false;
    return true;
  }
  data::RecordReader reader(f.source(), f.form, 1 << 20);
  for (std::string record; reader.next(record);)
    if (!take(record, std::string())) return false;
  return true;
}

Seen read(const TextFile& f, const InspectRecordsOptions& o) {
  Seen seen;
  seen.format = format_name(f);
  const std::string field = o.records.field.value_or(f.format ? f.format->default_field : "text");
  seen.complete = each_record(f, [&](const std::string& text, const std::string& problem) {
    if (!o.all && seen.records == kRecords) return false;
    ++seen.records;
    if (!problem.empty()) {
      ++seen.bad;
      if (seen.first_problem.empty()) seen.first_problem = problem;
      return true;
    }
    if (static_cast<int64_t>(seen.first.size()) < o.show) seen.first.push_back(text);
    add(seen, text, field, o);
    return true;
  });
  return seen;
}

void print(const TextFile& f, const Seen& s, const InspectRecordsOptions& o) {
  const auto n = [](int64_t v) { return static_cast<long long>(v); };
  std::printf("%s: %s, %lld bytes%s\n", f.path.c_str(), s.format.c_str(), n(f.bytes),
              f.compression == records::Compression::none ? "" : " compressed");
  std::printf("  records    %lld (%s)\n", n(s.records),
              s.complete ? "all of them" : "the first; --all reads all");
  std::string fields;
  for (const auto& [name, types] : s.fields)
    fields += fmt::format("{}{} ({})", fields.empty() ? "" : ", ", printable(name, 60), types_of(types));
  std::printf("  fields     %s\n", fields.c_str());
  if (!s.unit.empty()) print_lengths(s.lengths, s.unit + " a record");
  if (s.nulls > 0) std::printf("  null       %lld records have no such field or value\n", n(s.nulls));
  if (s.bad > 0) std::printf("  bad        %lld records, the first: %s\n", n(s.bad), s.first_problem.c_str());
  for (size_t i = 0; i < s.first.size(); ++i)
    std::printf("record %zu: %s\n", i + 1, printable(s.first[i], static_cast<size_t>(o.shown_bytes)).c_str());
  for (size_t i = 0; i < s.first_tokens.size(); ++i)
    std::printf("tokens of record %zu:\n%s\n", i + 1,
                tokens_with_text(*o.tokenizer, s.first_tokens[i]).c_str());
}

Json json_of(const TextFile& f, const Seen& s, const InspectRecordsOptions& o) {
  Json fields = Json::object();
  for (const auto& [name, types] : s.fields) fields[name] = types;
  Json j{{"path", f.path},         {"format", s.format}, {"bytes", f.bytes}, {"records", s.records},
         {"complete", s.complete}, {"fields", fields},   {"null", s.nulls},  {"bad", s.bad}};
  if (!s.unit.empty())
    j["lengths"] = {{"unit", s.unit},
                    {"shortest", s.lengths.shortest},
                    {"longest", s.lengths.longest},
                    {"histogram", histogram_json(s.lengths, "records")}};
  j["first"] = Json::array();
  for (const std::string& r : s.first) j["first"].push_back(Json::parse(r, nullptr, false));
  if (o.tokens) j["first_tokens"] = s.first_tokens;
  return j;
}

}  // namespace

void inspect_records(const InspectRecordsOptions& o) {
  const data::InputList list = data::list_inputs({o.path}, {}, {}, o.records);
  for (const std::string& phrase : list.left_out()) print_notes({"left out: " + phrase});
  Json all = Json::array();
  std::set<std::string> formats, endings;
  int64_t texts = 0;
  for (const TextFile& listed : list.files) {
    // The first object with each ending is downloaded.
    if (listed.object && !endings.insert(std::filesystem::path(listed.path).extension().string()).second)
      continue;
    const TextFile f = data::resolved(listed, o.records);
    texts += !f.format && f.form == RecordForm::none;
    if (!formats.insert(format_name(f)).second) continue;
    if (!f.format && f.form == RecordForm::none) continue;
    const Seen seen = read(f, o);
    o.json ? void(all.push_back(json_of(f, seen, o))) : print(f, seen, o);
  }
  if (o.json) {
    std::printf("%s\n", Json{{"schema", "ltrain.records.v2"},
                             {"files", list.files.size()},
                             {"bytes", list.bytes},
                             {"texts", texts},
                             {"records", all}}
                            .dump(2, ' ', false, Json::error_handler_t::replace)
                            .c_str());
    return;
  }
  std::printf("%zu file%s, %.1f MB; %lld of them text\n", list.files.size(),
              list.files.size() == 1 ? "" : "s", static_cast<double>(list.bytes) * 1e-6,
              static_cast<long long>(texts));
}

}  // namespace ltrain::app
