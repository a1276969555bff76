#include "runtime/data/input/jsonl.h"

#include <simdjson.h>

#include <bit>
#include <cctype>
#include <cstdlib>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {
namespace {

/// Longest record for simdjson, which needs up to 14 bytes of memory for each byte of a record.
constexpr size_t kMostFastBytes = size_t{16} << 20;

/// Walks the record without building it, so memory and stack stay small for any nesting.
class TextFinder final : public nlohmann::json::json_sax_t {
 public:
  explicit TextFinder(const std::string& key) : key_(&key) {}

  std::string text;
  int found = 0;
  bool object = false, other_type = false;
  std::string keys;  // keys of the record, for messages
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
    wanted_ = k == *key_;
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

  const std::string* key_;
  int64_t depth_ = 0;
  bool wanted_ = false;
};

bool delimiter(char c) { return c == ',' || c == ':' || c == '[' || c == ']' || c == '}'; }

/// Calls `visit(position, word)` for each NaN, Infinity and -Infinity outside strings.
template <class Visit>
void each_nan(std::string_view line, Visit visit) {
  bool in_string = false;
  char before = '\0';  // last non-blank character outside strings
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (delimiter(before) && (c == 'N' || c == 'I' || c == '-'))
      for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
        if (!line.substr(i).starts_with(word)) continue;
        const size_t end = line.find_first_not_of(" \t\r\n", i + word.size());
        if (end != line.npos && delimiter(line[end])) visit(i, word);
      }
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n') before = c;
  }
}

/// `line` with NaN, Infinity and -Infinity outside strings replaced by zeros of the same width, so that
/// columns in messages stay right.
std::string without_nan(std::string_view line) {
  std::string out(line);
  each_nan(line, [&](size_t at, std::string_view word) {
    out.replace(at, word.size(), "0" + std::string(word.size() - 1, ' '));
  });
  return out;
}

/// Parses `line` into `finder`. Retries with Python's NaN and Infinity replaced if there are any.
bool walk(std::string_view line, TextFinder& finder, const std::string& key) {
  if (nlohmann::json::sax_parse(line.begin(), line.end(), &finder)) return true;
  if (line.find("NaN") == line.npos && line.find("Infinity") == line.npos) return false;
  const std::string plain = without_nan(line);
  if (plain == line) return false;
  finder = TextFinder(key);
  return nlohmann::json::sax_parse(plain.begin(), plain.end(), &finder);
}

/// Value of the four hexadecimal digits of a \u escape at `at`; -1 if there is no escape.
int surrogate_escape(std::string_view s, size_t at) {
  if (s.size() - at < 6 || s[at] != '\\' || s[at + 1] != 'u') return -1;
  int value = 0;
  for (size_t i = at + 2; i < at + 6; ++i) {
    if (!std::isxdigit(static_cast<unsigned char>(s[i]))) return -1;
    value = value * 16 + (s[i] <= '9' ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
  }
  return value;
}

/// The parser's "line 2, column 8: what", with lines counted from the file's line `first`. The line is
/// omitted for a record of one line.
std::string parse_problem(const std::string& error, std::string_view record, int64_t first) {
  const size_t line = error.find("line "), column = error.find("column ");
  if (column == error.npos) return error;
  if (line > column || record.find('\n') == record.npos) return error.substr(column);
  return fmt::format("line {}, {}", first + std::atoll(error.c_str() + line + 5) - 1, error.substr(column));
}

}  // namespace

std::string with_quoted_nan(std::string_view line) {
  std::string out;
  size_t copied = 0;
  each_nan(line, [&](size_t at, std::string_view word) {
    out.append(line.substr(copied, at - copied)).append("\"").append(word).append("\"");
    copied = at + word.size();
  });
  return out.append(line.substr(copied));
}

std::optional<std::string> ordinary_text(std::string_view line, const std::string& key) {
  if (line.size() > kMostFastBytes) return std::nullopt;
  thread_local simdjson::dom::parser parser;
  thread_local std::vector<char> padded;
  if (padded.size() < line.size() + simdjson::SIMDJSON_PADDING) {
    const size_t capacity = std::bit_ceil(std::max<size_t>(line.size(), 4096));
    padded.resize(capacity + simdjson::SIMDJSON_PADDING);
    if (parser.allocate(capacity) != simdjson::SUCCESS) return std::nullopt;
  }
  std::copy(line.begin(), line.end(), padded.begin());
  std::fill_n(padded.begin() + static_cast<ptrdiff_t>(line.size()), simdjson::SIMDJSON_PADDING, '\0');
  simdjson::dom::object record;
  if (parser.parse(padded.data(), line.size(), false).get(record) != simdjson::SUCCESS) return std::nullopt;
  std::optional<std::string_view> text;
  for (const auto [name, value] : record) {
    if (name != key) continue;
    std::string_view found;
    if (text || value.get(found) != simdjson::SUCCESS) return std::nullopt;
    text = found;
  }
  if (!text) return std::nullopt;
  return std::string(*text);
}

std::string json_text(std::string_view line, const std::string& key, const std::string& path,
                      int64_t line_number) {
  if (std::optional<std::string> text = ordinary_text(line, key)) return std::move(*text);
  TextFinder finder(key);
  // Format of the parser's errors: "[json.exception.parse_error.101] parse error at line 1, column 8: what".
  if (!walk(line, finder, key))
    fail(ExitCode::data, "{}:{}: not JSON: {}", path, line_number,
         printable(parse_problem(finder.error, line, line_number), 300));
  if (!finder.object)
    fail(ExitCode::data, "{}:{}: not a JSON object; each line is one, such as {{\"{}\": \"...\"}}", path,
         line_number, key);
  if (finder.found == 0)
    fail(ExitCode::data, "{}:{}: no key \"{}\"; the record has: {}. Name the key of the text with --field",
         path, line_number, key, finder.keys);
  if (finder.found > 1)
    fail(ExitCode::data, "{}:{}: key \"{}\" {} times; it must be there once", path, line_number, key,
         finder.found);
  if (finder.other_type) fail(ExitCode::data, "{}:{}: \"{}\" is not a string", path, line_number, key);
  return std::move(finder.text);
}

std::optional<std::string> read_record(std::string_view line, const RecordOptions& options,
                                       const std::string& path, int64_t line_number, BadRecords& bad) {
  const std::string key = options.key();
  if (options.on_bad == OnBadRecord::stop) return json_text(line, key, path, line_number);
  try {
    return json_text(line, key, path, line_number);
  } catch (const Error& e) {
    bad.add(e.what());
  }
  if (options.on_bad == OnBadRecord::replace)
    if (const std::string repaired = repair_record(line); repaired != line) try {
        std::string text = json_text(repaired, key, path, line_number);
        ++bad.replaced;
        return text;
      } catch (const Error&) {
        // The record has another defect too, and the first one is reported.
      }
  ++bad.skipped;
  return std::nullopt;
}

std::string repair_record(std::string_view line) {
  std::string out;
  const char *p = line.data(), *end = p + line.size();
  while (p < end) {
    if (*p == '\\' && end - p > 1) {
      const auto at = static_cast<size_t>(p - line.data());
      const int code = surrogate_escape(line, at);
      const bool high = code >= 0xD800 && code < 0xDC00, low = code >= 0xDC00 && code < 0xE000;
      const int next = high ? surrogate_escape(line, at + 6) : -1;
      if (high && next >= 0xDC00 && next < 0xE000) {
        out.append(p, 12);
        p += 12;
      } else if (high || low) {
        out += "\\ufffd";
        p += 6;
      } else if (static_cast<unsigned char>(p[1]) < 0x80) {
        out.append(p, 2);
        p += 2;
      } else {
        out += *p++;
      }
      continue;
    }
    const Char c = next_char(p, end);
    c.valid ? out.append(p, static_cast<size_t>(c.bytes)) : out.append("\xEF\xBF\xBD");
    p += c.bytes;
  }
  return out;
}

RecordShape record_shape(std::string_view line, const std::string& key) {
  TextFinder finder(key);
  RecordShape shape;
  const std::string repaired = repair_record(line);
  if (!walk(repaired, finder, key)) {
    shape.error = "not JSON: " + printable(parse_problem(finder.error, repaired, 1), 200);
  } else if (!finder.object) {
    shape.error = "not a JSON object";
  }
  shape.object = shape.error.empty();
  shape.has_key = finder.found > 0;
  shape.keys = finder.keys;
  return shape;
}

}  // namespace ltrain::data
