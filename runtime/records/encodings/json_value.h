// Values as JSON text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/records/encodings/damage.h"

namespace ltrain::records {

/// Largest text of a record; larger ones are refused.
constexpr size_t kMostText = size_t{1} << 30;
/// Largest number of tokens of a record.
constexpr size_t kMostTokens = size_t{1} << 28;

/// The text in quotes. Bytes that are not UTF-8 stay as they are.
void append_json_string(std::string& to, std::string_view text);
void append_json_integer(std::string& to, int64_t value);
void append_json_unsigned(std::string& to, uint64_t value);
/// Shortest digits that give the same number, "1.0" for 1, NaN and Infinity as Python's json writes them.
void append_json_float(std::string& to, double value);
/// A number of 16 bits.
float float_of_half(uint16_t half);
/// A decimal in quotes, "-12.34". `big_endian`: unscaled value in two's complement, 1 to 32 bytes; `scale`: 0
/// to 1000. Throws Damage.
void append_json_decimal(std::string& to, Bytes big_endian, int scale);
void append_json_decimal(std::string& to, int64_t unscaled, int scale);
/// Throws Damage for a record that grew too large.
void check_record_size(size_t text, size_t tokens);
/// Throws Damage for an id of more than 32 bits. An unsigned one is read as 64 bits without a sign.
int32_t token_of(int64_t id, bool is_signed);

}  // namespace ltrain::records
