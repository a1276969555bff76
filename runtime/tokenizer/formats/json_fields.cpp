#include "runtime/tokenizer/formats/json_fields.h"

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain::data {
namespace {

std::string shown(const nlohmann::json& value) {
  return value.is_structured() ? (value.is_object() ? "an object" : "a list") : printable(value.dump(), 80);
}

}  // namespace

JsonFields::JsonFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) fail(ExitCode::data, "{}: {}, not an object", where_, shown(object_));
}

const JsonFields::Json* JsonFields::find(const std::string& key) {
  read_.insert(key);
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const JsonFields::Json& JsonFields::get(const std::string& key) {
  const Json* value = find(key);
  if (!value) fail(ExitCode::data, "{}: key {} is missing", where_, printable(key, 80));
  return *value;
}

std::string JsonFields::text(const std::string& key) {
  const Json& value = get(key);
  if (!value.is_string()) fail(ExitCode::data, "{}: {}, not a string", where(key), shown(value));
  return value.get<std::string>();
}

std::string JsonFields::text(const std::string& key, const std::string& missing) {
  return find(key) ? text(key) : missing;
}

bool JsonFields::truth(const std::string& key, bool missing) {
  const Json* value = find(key);
  if (!value) return missing;
  if (!value->is_boolean()) fail(ExitCode::data, "{}: {}, not true or false", where(key), shown(*value));
  return value->get<bool>();
}

int64_t JsonFields::integer(const std::string& key, int64_t low, int64_t high) {
  const Json& value = get(key);
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high)
    fail(ExitCode::data, "{}: {}, not a whole number from {} to {}", where(key), shown(value), low, high);
  return value.get<int64_t>();
}

const JsonFields::Json& JsonFields::list(const std::string& key) {
  const Json& value = get(key);
  if (!value.is_array()) fail(ExitCode::data, "{}: {}, not a list", where(key), shown(value));
  return value;
}

void JsonFields::refuse(const std::string& key, const std::string& why,
                        std::initializer_list<Json> accepted) {
  const Json* value = find(key);
  if (!value || std::find(accepted.begin(), accepted.end(), *value) != accepted.end()) return;
  fail(ExitCode::data, "{}: {}: {}", where(key), shown(*value), why);
}

void JsonFields::done() const {
  for (const auto& [key, value] : object_.items())
    if (!read_.contains(key))
      fail(ExitCode::data, "{}: key \"{}\": not known, so that it can be neither obeyed nor passed over",
           where_, printable(key, 80));
}

}  // namespace ltrain::data
