#include "app/data/inspect_records.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "app/print_notes.h"
#include "base/error.h"
#include "base/printable.h"

namespace ltrain::app {
namespace {

using Json = nlohmann::ordered_json;
using data::RecordForm, data::TextFile;

constexpr int64_t kRecords = 10000;

struct Seen {
  std::string format;
  int64_t records = 0, nulls = 0, bad = 0;
  bool complete = false;  // all records were read
  std::vector<std::string> fields;
  int64_t shortest = INT64_MAX, longest = 0;  // length of the field, in bytes or tokens
  bool tokens = false, has_field = false;
  std::vector<std::string> first;  // records as JSON
  std::string first_problem;
};

std::string format_name(const TextFile& f) {
  if (f.format) return f.format->name;
  return f.form == RecordForm::lines ? "jsonl" : f.form == RecordForm::array ? "json array" : "text";
}

/// Adds one record, as a JSON object.
void add(Seen& seen, const std::string& text, const std::string& field) {
  const Json record = Json::parse(text, nullptr, false);
  if (!record.is_object()) {
    ++seen.bad;
    if (seen.first_problem.empty()) seen.first_problem = "not a JSON object";
    return;
  }
  for (const auto& [key, value] : record.items())
    if (key != "__key__" && seen.fields.size() < 100 &&
        std::find(seen.fields.begin(), seen.fields.end(), key) == seen.fields.end())
      seen.fields.push_back(key);
  const auto found = record.find(field);
  if (found == record.end() || found->is_null()) {
    ++seen.nulls;
    return;
  }
  seen.has_field = true;
  seen.tokens = found->is_array();
  const auto length = static_cast<int64_t>(found->is_string()  ? found->get_ref<const std::string&>().size()
                                           : found->is_array() ? found->size()
                                                               : 0);
  seen.shortest = std::min(seen.shortest, length);
  seen.longest = std::max(seen.longest, length);
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
    add(seen, text, field);
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
  for (const std::string& name : s.fields) fields += (fields.empty() ? "" : ", ") + printable(name, 60);
  std::printf("  fields     %s\n", fields.c_str());
  if (s.has_field)
    std::printf("  lengths    %lld to %lld %s\n", n(s.shortest), n(s.longest),
                s.tokens ? "tokens" : "bytes of text");
  if (s.nulls > 0) std::printf("  null       %lld records have no such field or value\n", n(s.nulls));
  if (s.bad > 0) std::printf("  bad        %lld records, the first: %s\n", n(s.bad), s.first_problem.c_str());
  for (size_t i = 0; i < s.first.size(); ++i)
    std::printf("record %zu: %s\n", i + 1, printable(s.first[i], static_cast<size_t>(o.shown_bytes)).c_str());
}

Json json_of(const TextFile& f, const Seen& s) {
  Json j{{"path", f.path},         {"format", s.format}, {"bytes", f.bytes}, {"records", s.records},
         {"complete", s.complete}, {"fields", s.fields}, {"null", s.nulls},  {"bad", s.bad}};
  if (s.has_field) j["lengths"] = {{"shortest", s.shortest}, {"longest", s.longest}};
  j["first"] = Json::array();
  for (const std::string& r : s.first) j["first"].push_back(Json::parse(r, nullptr, false));
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
    o.json ? void(all.push_back(json_of(f, seen))) : print(f, seen, o);
  }
  if (o.json) {
    std::printf("%s\n", Json{{"schema", "ltrain.records.v1"},
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
