// Fields of protobuf messages, written without a protobuf library.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ltrain {

inline void put_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}

/// A field that holds text, bytes or another message.
inline void put_field(std::string& to, int field, std::string_view bytes) {
  put_varint(to, static_cast<uint64_t>(field) << 3 | 2);
  put_varint(to, bytes.size());
  to += bytes;
}

/// A field that holds a whole number.
inline void put_field(std::string& to, int field, int64_t value) {
  put_varint(to, static_cast<uint64_t>(field) << 3);
  put_varint(to, static_cast<uint64_t>(value));
}

}  // namespace ltrain
