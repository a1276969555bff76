#include "runtime/data/input/record_filter.h"

#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/data/input/jsonl.h"

namespace ltrain::data {
namespace {

constexpr size_t kMostDepth = 16;         // objects in objects that are looked into
constexpr double kExactInteger = 0x1p53;  // integers below are exact as double

/// Value of a text that is one number, in the forms of strtod, without white space before or after it.
std::optional<double> number_in(const std::string& text) {
  if (text.empty() || std::isspace(static_cast<unsigned char>(text[0]))) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size()) return std::nullopt;
  return value;
}

bool is_integer(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

/// Value of a field of the filter.
struct FieldValue {
  enum Kind : uint8_t { missing, null, truth, number, text, other } kind = missing;
  std::string text_value;  // text, and the digits of an integer
  double number_value = 0;
  int times = 0;
};

/// Walks the record without building it, so memory and stack stay small for any nesting.
class FieldFinder final : public nlohmann::json::json_sax_t {
 public:
  explicit FieldFinder(const RecordFilter& filter) : filter_(filter), values_(filter.size()) {}

  bool is_object() const { return object_; }
  const FieldValue& value(size_t i) const { return values_[i]; }

  bool null() override { return take(FieldValue::null); }
  bool boolean(bool v) override { return take(FieldValue::truth, v ? "true" : "false"); }
  bool number_integer(number_integer_t v) override {
    return take(FieldValue::number, std::to_string(v), static_cast<double>(v));
  }
  bool number_unsigned(number_unsigned_t v) override {
    return take(FieldValue::number, std::to_string(v), static_cast<double>(v));
  }
  bool number_float(number_float_t v, const string_t&) override { return take(FieldValue::number, "", v); }
  bool string(string_t& v) override { return take(FieldValue::text, v); }
  bool binary(binary_t&) override { return take(FieldValue::other); }
  bool key(string_t& k) override {
    if (!followed()) return true;
    path_.resize(lengths_.back());
    if (!path_.empty()) path_ += '.';
    path_ += k;
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ == 0) object_ = true;
    take(FieldValue::other);
    // Fields of an object in a list have no name.
    if (depth_ == lengths_.size() && depth_ < kMostDepth) lengths_.push_back(path_.size());
    ++depth_;
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override {
    take(FieldValue::other);
    ++depth_;
    return true;
  }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  /// Returns whether the reader is in an object whose fields have names.
  bool followed() const { return depth_ > 0 && depth_ == lengths_.size(); }

  bool close() {
    if (followed()) {
      path_.resize(lengths_.back());
      lengths_.pop_back();
    }
    --depth_;
    return true;
  }

  bool take(FieldValue::Kind kind, std::string text = "", double number = 0) {
    if (!followed()) return true;
    for (size_t i = 0; i < filter_.size(); ++i)
      if (filter_[i].field == path_) values_[i] = {kind, text, number, values_[i].times + 1};
    return true;
  }

  const RecordFilter& filter_;
  std::vector<FieldValue> values_;
  std::string path_;             // name of the field that is read, "a.b"
  std::vector<size_t> lengths_;  // length of path_ outside each open object
  size_t depth_ = 0;             // open objects and lists
  bool object_ = false;
};

std::string kind_text(const FieldValue& v) {
  switch (v.kind) {
    case FieldValue::truth:
      return v.text_value;
    case FieldValue::number:
      return fmt::format("the number {}",
                         v.text_value.empty() ? fmt::format("{}", v.number_value) : v.text_value);
    case FieldValue::text:
      return fmt::format("the text \"{}\"", printable(v.text_value, 60));
    default:
      return "a list or an object";
  }
}

[[noreturn]] void refuse_value(const FieldCondition& c, const FieldValue& v, const std::string& where,
                               const std::string& expected) {
  fail(ExitCode::data, "{}: where: field \"{}\" is {}, expected {}", where, printable(c.field, 80),
       kind_text(v), expected);
}

bool in_bounds(const FieldCondition& c, const FieldValue& v, const std::string& where) {
  std::optional<double> number;
  if (v.kind == FieldValue::number) number = v.number_value;
  if (v.kind == FieldValue::text) number = number_in(v.text_value);
  if (!number) refuse_value(c, v, where, "a number for min and max");
  return !std::isnan(*number) && *number >= c.min.value_or(-INFINITY) && *number <= c.max.value_or(INFINITY);
}

bool equals_number(const std::string& wanted, const FieldValue& v) {
  if (!v.text_value.empty() && is_integer(wanted) && std::abs(v.number_value) >= kExactInteger)
    return wanted == v.text_value;
  return number_in(wanted) == v.number_value;
}

bool is_among(const FieldCondition& c, const FieldValue& v, const std::string& where) {
  bool comparable = v.kind == FieldValue::text;
  for (const std::string& wanted : c.values) {
    const bool truth = wanted == "true" || wanted == "false";
    if (v.kind == FieldValue::truth ? truth : v.kind == FieldValue::number && number_in(wanted).has_value())
      comparable = true;
    if (v.kind == FieldValue::number ? equals_number(wanted, v) : wanted == v.text_value) return true;
  }
  if (!comparable)
    refuse_value(c, v, where,
                 fmt::format("a value to compare with {}",
                             printable(fmt::format("{}", fmt::join(c.values, ", ")), 100)));
  return false;
}

bool holds(const FieldCondition& c, const FieldValue& v, const std::string& where) {
  if (v.kind == FieldValue::missing)
    fail(ExitCode::data,
         "{}: where: no field \"{}\" in the record, expected it in every record (null is never kept)", where,
         printable(c.field, 80));
  if (v.times > 1)
    fail(ExitCode::data, "{}: where: field \"{}\" {} times, expected it once", where, printable(c.field, 80),
         v.times);
  if (v.kind == FieldValue::null) return false;
  if (v.kind == FieldValue::other) refuse_value(c, v, where, "a text, a number, or true or false");
  return c.values.empty() ? in_bounds(c, v, where) : is_among(c, v, where);
}

}  // namespace

std::string filter_text(const RecordFilter& filter) {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const FieldCondition& c : filter) {
    nlohmann::ordered_json& one = all[c.field];
    if (!c.values.empty()) one = c.values;
    if (c.min) one["min"] = *c.min;
    if (c.max) one["max"] = *c.max;
  }
  return all.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::vector<std::string> filter_fields(const RecordFilter& filter) {
  std::vector<std::string> fields;
  for (const FieldCondition& c : filter) fields.push_back(c.field);
  return fields;
}

bool keeps_record(const RecordFilter& filter, std::string_view record, const std::string& where) {
  std::optional<FieldFinder> finder(filter);
  if (!nlohmann::json::sax_parse(record.begin(), record.end(), &*finder)) {
    // Python's json writes NaN and Infinity, which are compared with bounds.
    const std::string plain = with_quoted_nan(record);
    finder.emplace(filter);
    if (!nlohmann::json::sax_parse(plain.begin(), plain.end(), &*finder))
      fail(ExitCode::data, "{}: where: expected a JSON object, got text that is not JSON", where);
  }
  if (!finder->is_object())
    fail(ExitCode::data, "{}: where: expected a JSON object, got another JSON value", where);
  for (size_t i = 0; i < filter.size(); ++i)
    if (!holds(filter[i], finder->value(i), where)) return false;
  return true;
}

}  // namespace ltrain::data
