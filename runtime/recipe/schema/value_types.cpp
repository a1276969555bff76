// Typed reading and writing of scalars in the YAML 1.2 core schema. The key determines the type: `no` is a
// word for a text key and an error for a boolean key, `1e-4` is a number, and 012 is refused because YAML 1.1
// reads it as 10.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

namespace {

bool is_digits(std::string_view s) {
  if (s.empty()) return false;
  for (char c : s)
    if (c < '0' || c > '9') return false;
  return true;
}

std::string kind_name(const Node& node) {
  switch (node.kind) {
    case Node::null:
      return "null";
    case Node::list:
      return "a list";
    case Node::map:
      return "a map";
    case Node::scalar:
      return "a quoted text";
  }
  return "";
}

std::string not_a(const std::string& wanted, const Node& node) {
  if (node.kind == Node::null) return "needs " + wanted + "; remove the key to take the default";
  return node.kind == Node::scalar && !node.quoted ? "needs " + wanted
                                                   : "needs " + wanted + ", not " + kind_name(node);
}

/// Parses a plain number of the YAML 1.2 core schema: [-+]? (digits [. digits] | . digits) [e [-+] digits]
bool parse_core_number(std::string_view s, double& out) {
  std::string_view t = s;
  if (!t.empty() && (t[0] == '-' || t[0] == '+')) t.remove_prefix(1);
  if (t.empty() || !((t[0] >= '0' && t[0] <= '9') || t[0] == '.')) return false;
  for (char c : t)
    if (!((c >= '0' && c <= '9') || c == '.' || c == 'e' || c == 'E' || c == '-' || c == '+')) return false;
  if (s[0] == '+') s.remove_prefix(1);
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), out);
  if (error == std::errc::result_out_of_range) {
    // Too small rounds to zero. Too large becomes an infinity, which the caller refuses.
    out = std::strtod(std::string(s).c_str(), nullptr);
    return end == s.data() + s.size();
  }
  return error == std::errc() && end == s.data() + s.size();
}

bool is_yaml11_bool(const std::string& s, bool& value) {
  for (const char* w : {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y", "1"})
    if (s == w) return value = true, true;
  for (const char* w : {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N", "0"})
    if (s == w) return value = false, true;
  return false;
}

/// The number in plain notation for 1_000_000, 1,000,000 or a decimal comma; "" for other text, and for an
/// ambiguous one: 1,500 may be 1500 or 1.5.
std::string plain_number(const std::string& s) {
  const auto digit = [&](size_t i) { return i < s.size() && s[i] >= '0' && s[i] <= '9'; };
  std::string t;
  std::vector<size_t> commas;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '_' || s[i] == ',') {
      if (i == 0 || !digit(i - 1) || !digit(i + 1)) return "";
      if (s[i] == ',') commas.push_back(i);
    }
    if (s[i] != '_') t += s[i];
  }
  if (commas.empty()) return t;
  if (s.find('_') != std::string::npos) return "";
  // Groups of three digits, the first of one to three digits.
  const size_t first = s.find_first_of("0123456789");
  bool groups = commas[0] - first <= 3 && s[first] != '0';
  for (const size_t at : commas) groups = groups && digit(at + 2) && digit(at + 3) && !digit(at + 4);
  if (groups && (commas.size() > 1 || s.find('.') != std::string::npos)) {
    t.erase(std::remove(t.begin(), t.end(), ','), t.end());
    return t;
  }
  if (groups || commas.size() > 1 || s.find('.') != std::string::npos) return "";
  t[t.find(',')] = '.';
  return t;
}

/// `plain_number` of an integer, where a single comma can only separate thousands.
std::string plain_integer(const std::string& s) {
  const size_t comma = s.find(',');
  if (comma == std::string::npos || comma != s.rfind(',') || s.find('.') != std::string::npos)
    return plain_number(s);
  const std::string t = plain_number(s + ",000");  // decides 1,500 like 1,500,000
  return t.size() > 3 && t.find('.') == std::string::npos ? t.substr(0, t.size() - 3) : "";
}

}  // namespace

std::string read_integer(const Node& node, int64_t& out, const std::string& or_word) {
  const std::string wanted = or_word.empty() ? "an integer" : "an integer or " + or_word;
  if (node.kind != Node::scalar) return not_a(wanted, node);
  const std::string& s = node.text;
  std::string_view digits = s;
  const bool negative = !s.empty() && s[0] == '-';
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) digits.remove_prefix(1);
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'o')) {
    base = digits[1] == 'x' ? 16 : 8;
    digits.remove_prefix(2);
  }
  if (base != 10 || is_digits(digits)) {
    if (base == 10 && digits.size() > 1 && digits[0] == '0') {
      const size_t first = std::min(digits.find_first_not_of('0'), digits.size() - 1);
      return fmt::format("has a leading zero, which YAML 1.1 and 1.2 read differently; write {}{}",
                         negative ? "-" : "", digits.substr(first));
    }
    if (node.quoted) return fmt::format("needs an integer, not a quoted text; write {}", s);
    uint64_t magnitude = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
    if (error == std::errc::result_out_of_range || (error == std::errc() && magnitude > INT64_MAX))
      return "is beyond a 64-bit integer";
    if (error == std::errc() && end == digits.data() + digits.size()) {
      out = negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
      return "";
    }
  }
  double number = 0;
  if (parse_core_number(plain_integer(s), number) && std::abs(number) < 9e15 && number == std::floor(number))
    return fmt::format("needs an integer; write {}", static_cast<int64_t>(number));
  return not_a(wanted, node);
}

std::string read_number(const Node& node, double& out) {
  if (node.kind != Node::scalar) return not_a("a number", node);
  double number = 0;
  if (parse_core_number(node.text, number)) {
    if (node.quoted) return fmt::format("needs a number, not a quoted text; write {}", node.text);
    if (!std::isfinite(number)) return "is beyond a 64-bit float";
    out = number;
    return "";
  }
  if (node.text == ".inf" || node.text == "-.inf" || node.text == "+.inf" || node.text == ".nan" ||
      node.text == ".Inf" || node.text == ".NaN" || node.text == "inf" || node.text == "nan")
    return "must be finite";
  if (const std::string plain = plain_number(node.text); parse_core_number(plain, number))
    return fmt::format("needs a number; write {}", plain);
  return not_a("a number", node);
}

std::string read_bool(const Node& node, bool& out) {
  if (node.kind != Node::scalar) return not_a("true or false", node);
  const std::string& s = node.text;
  bool value = false;
  const bool known = is_yaml11_bool(s, value);
  const bool core = s == "true" || s == "True" || s == "TRUE" || s == "false" || s == "False" || s == "FALSE";
  if (core && !node.quoted) {
    out = value;
    return "";
  }
  if (known) return fmt::format("needs true or false; write {}", value);
  return not_a("true or false", node);
}

std::string read_text(const Node& node, std::string& out) {
  if (node.kind != Node::scalar) return not_a("a text", node);
  if (node.text.empty()) return "must not be empty";
  // Control characters would reach the terminal wherever the text is printed later.
  if (printable(node.text, node.text.size()) != node.text)
    return "must be UTF-8 without control characters, line ends or invisible characters";
  out = node.text;
  return "";
}

std::string check_range(const Key& key, double v, bool integer) {
  auto show = [&](double x) { return integer ? std::to_string(static_cast<int64_t>(x)) : write_number(x); };
  const bool low = key.least && (key.open ? v <= *key.least : v < *key.least);
  const bool high = key.most && (key.open ? v >= *key.most : v > *key.most);
  if (low || high) {
    std::string rule = "must be " + key.allowed();
    if (!key.open) rule += "; nearest valid value: " + show(low ? *key.least : *key.most);
    return rule;
  }
  return "";
}

std::string write_number(double v) {
  std::string s = fmt::format("{}", v);
  // keep it a floating-point number for other readers
  if (s.find_first_of(".en") == std::string::npos) s += ".0";
  return s;
}

std::string write_text(const std::string& v, bool json) {
  bool plain = !json && !v.empty();
  for (char c : v)
    plain = plain && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '-' || c == '.' || c == '/' || c == '+');
  if (plain) {
    // Quote texts that another YAML reader would read as another type.
    bool b;
    double d;
    plain = v != "null" && v != "Null" && v != "NULL" && v[0] != '-' && v[0] != '.' &&
            !is_yaml11_bool(v, b) && !parse_core_number(v, d);
    if (v.size() > 1 && v[0] == '.' && (v[1] == '/' || v[1] == '.')) plain = true;
  }
  if (plain) return v;
  std::string s = "\"";
  for (char c : v) {
    if (c == '"' || c == '\\') {
      s += '\\';
      s += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      s += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      s += c;
    }
  }
  return s + "\"";
}

}  // namespace ltrain::recipe
