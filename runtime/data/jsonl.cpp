#include "runtime/data/jsonl.h"

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/printable.h"

namespace ltrain::data {
namespace {

/// Walks the record without building it: memory and stack stay small whatever the nesting.
class TextFinder final : public nlohmann::json::json_sax_t {
 public:
  explicit TextFinder(const std::string& key) : key_(key) {}

  std::string text;
  int found = 0;
  bool object = false, other_type = false;
  std::string keys;  // of the record, for messages
  std::string error;

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool string(string_t& s) override {
    if (depth_ == 1 && wanted_) {
      text.swap(s);
      wanted_ = false;
    }
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ == 0) object = true;
    value();
    ++depth_;
    return true;
  }
  bool key(string_t& k) override {
    if (depth_ != 1) return true;
    wanted_ = k == key_;
    found += wanted_;
    if (keys.size() < 200) keys += (keys.empty() ? "" : ", ") + printable(k, 60);
    return true;
  }
  bool end_object() override { return --depth_, true; }
  bool start_array(std::size_t) override { return value(), ++depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& e) override {
    error = e.what();
    return false;
  }

 private:
  bool value() {
    if (depth_ == 1 && wanted_) other_type = true;
    if (depth_ == 1) wanted_ = false;
    return true;
  }

  const std::string& key_;
  int64_t depth_ = 0;
  bool wanted_ = false;
};

}  // namespace

std::string json_text(std::string_view line, const std::string& key, const std::string& path,
                      int64_t line_number) {
  TextFinder finder(key);
  if (!nlohmann::json::sax_parse(line.begin(), line.end(), &finder)) {
    // "[json.exception.parse_error.101] parse error at line 1, column 8: what": the user's line is not
    // line 1.
    std::string why = finder.error;
    if (const size_t at = why.find("column "); at != std::string::npos) why = why.substr(at);
    fail(ExitCode::data, "{}:{}: not JSON: {}", path, line_number, printable(why, 300));
  }
  if (!finder.object)
    fail(ExitCode::data, "{}:{}: not a JSON object; each line is one, such as {{\"{}\": \"...\"}}", path,
         line_number, key);
  if (finder.found == 0)
    fail(ExitCode::data, "{}:{}: no key \"{}\"; the record has: {}. Name the key of the text with --json-key",
         path, line_number, key, finder.keys);
  if (finder.found > 1)
    fail(ExitCode::data, "{}:{}: key \"{}\" {} times; it must be there once", path, line_number, key,
         finder.found);
  if (finder.other_type) fail(ExitCode::data, "{}:{}: \"{}\" is not a string", path, line_number, key);
  return std::move(finder.text);
}

}  // namespace ltrain::data
