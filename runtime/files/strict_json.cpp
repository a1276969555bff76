#include "runtime/files/strict_json.h"

#include <fmt/format.h>

#include <set>

#include "base/printable.h"

namespace ltrain::data {

nlohmann::json parse_strict(const std::string& text, int depth, std::string& error) {
  using nlohmann::json;
  error.clear();
  std::vector<std::set<std::string>> keys;
  std::string twice;
  bool deep = false;
  const auto watch = [&](int level, json::parse_event_t event, json& value) {
    deep = deep || level > depth;
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && twice.empty()) {
      const std::string key = value.get<std::string>();
      if (!keys.back().insert(key).second) twice = key.empty() ? "(empty)" : key;
    }
    return !deep;
  };
  json value;
  try {
    value = json::parse(text, watch);
  } catch (const json::exception& e) {
    // Format of the library's errors: "[json.exception.parse_error.101] parse error at line 1, column 8: ..."
    std::string why = e.what();
    if (const size_t end = why.find("] "); end != std::string::npos) why = why.substr(end + 2);
    error = "not JSON: " + printable(why, 200);
  }
  if (deep) error = fmt::format("not what it is for: nested deeper than {} levels", depth);
  if (error.empty() && !twice.empty())
    error = fmt::format("the key \"{}\" stands twice in one object", printable(twice, 80));
  return error.empty() ? value : json();
}

}  // namespace ltrain::data
