#include "runtime/records/encodings/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

namespace ltrain::records {

void append_json_string(std::string& to, std::string_view text) {
  constexpr std::string_view kShort = "btn?fr";  // \b is 8
  to += '"';
  size_t written = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    to.append(text.substr(written, i - written));
    written = i + 1;
    if (c == '"' || c == '\\')
      (to += '\\') += static_cast<char>(c);
    else if (c >= 8 && c <= 13 && c != 11)
      (to += '\\') += kShort[c - 8u];
    else
      to += fmt::format("\\u{:04x}", c);
  }
  to.append(text.substr(written));
  to += '"';
}

void append_json_integer(std::string& to, int64_t value) {
  const fmt::format_int text(value);
  to.append(text.data(), text.size());
}

void append_json_unsigned(std::string& to, uint64_t value) {
  const fmt::format_int text(value);
  to.append(text.data(), text.size());
}

void append_json_float(std::string& to, double value) {
  if (std::isnan(value)) {
    to += "NaN";
  } else if (std::isinf(value)) {
    to += value < 0 ? "-Infinity" : "Infinity";
  } else {
    const std::string text = fmt::format("{}", value);
    to += text;
    if (text.find_first_of(".e") == std::string::npos) to += ".0";
  }
}

float float_of_half(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  float value =
      std::ldexp(static_cast<float>(fraction + (exponent > 0 ? 1024 : 0)), std::max(exponent, 1) - 25);
  if (exponent == 31) value = fraction ? NAN : INFINITY;
  return half >> 15 ? -value : value;
}

void append_json_decimal(std::string& to, Bytes big_endian, int scale) {
  constexpr size_t kMost = 32;
  if (big_endian.empty() || big_endian.size() > kMost)
    damaged("a decimal has {} bytes, expected 1 to {}", big_endian.size(), kMost);
  std::vector<uint8_t> rest(big_endian.begin(), big_endian.end());
  const bool negative = rest[0] >> 7;
  if (negative) {  // the magnitude: all bits inverted, plus one
    for (uint8_t& b : rest) b = static_cast<uint8_t>(~b);
    for (size_t i = rest.size(); i-- > 0 && ++rest[i] == 0;) {
    }
  }
  std::string digits;  // least significant first
  const auto is_zero = [](uint8_t b) { return b == 0; };
  while (!std::all_of(rest.begin(), rest.end(), is_zero)) {
    unsigned remainder = 0;
    for (uint8_t& b : rest) {
      const unsigned value = remainder << 8 | b;
      b = static_cast<uint8_t>(value / 10);
      remainder = value % 10;
    }
    digits += static_cast<char>('0' + remainder);
  }
  const auto places = static_cast<size_t>(scale);
  if (digits.size() <= places) digits.append(places + 1 - digits.size(), '0');
  std::reverse(digits.begin(), digits.end());
  if (places > 0) digits.insert(digits.size() - places, ".");
  ((to += negative ? "\"-" : "\"") += digits) += '"';
}

void append_json_decimal(std::string& to, int64_t unscaled, int scale) {
  std::array<uint8_t, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(static_cast<uint64_t>(unscaled) >> (56 - 8 * i));
  append_json_decimal(to, bytes, scale);
}

void check_record_size(size_t text, size_t tokens) {
  if (text > kMostText) damaged("the record has more than {} bytes of text", kMostText);
  if (tokens > kMostTokens) damaged("the record has more than {} tokens", kMostTokens);
}

int32_t token_of(int64_t id, bool is_signed) {
  if (!is_signed && id < 0)
    damaged("a token is {}, expected an id of at most 32 bits", static_cast<uint64_t>(id));
  if (id != static_cast<int32_t>(id)) damaged("a token is {}, expected an id of at most 32 bits", id);
  return static_cast<int32_t>(id);
}

}  // namespace ltrain::records
