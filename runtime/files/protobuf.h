// The wire format of Protocol Buffers: the fields of a message, one after another.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ltrain::data {

/// Iterates over the fields of a message. Throws Error (data) with the file, the message and the offset of
/// invalid bytes.
class ProtobufFields {
 public:
  enum Type : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

  /// `name`: file and message, and `kind`: what the file should be, for errors; both must outlive this
  /// object. `offset`: position of `message` in the file.
  ProtobufFields(std::string_view message, const std::string& name, const char* kind, size_t offset = 0)
      : text_(message), name_(name), kind_(kind), offset_(offset) {}

  /// Moves to the next field; false at the end.
  bool next() {
    if (at_ == text_.size()) return false;
    const uint64_t tag = read_varint();
    number_ = static_cast<int>(tag >> 3);
    type_ = static_cast<Type>(tag & 7);
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) fail_at("no field has this number");
    switch (type_) {
      case varint:
        value_ = read_varint();
        break;
      case fixed64:
        value_ = 0;
        std::memcpy(&value_, take(8).data(), 8);
        break;
      case fixed32:
        value_ = 0;
        std::memcpy(&value_, take(4).data(), 4);
        break;
      case bytes: {
        const uint64_t size = read_varint();
        if (size > text_.size() - at_) fail_at("a field is longer than what it is in");
        begin_ = at_;
        bytes_ = take(static_cast<size_t>(size));
        break;
      }
      default:
        fail_at("no type of a field");
    }
    return true;
  }

  int number() const { return number_; }
  Type type() const { return type_; }
  // Value of the field. The type must match.
  uint64_t integer() const { return require(varint), value_; }
  bool truth() const { return integer() != 0; }
  float real() const {
    require(fixed32);
    float f = 0;
    std::memcpy(&f, &value_, 4);
    return f;
  }
  std::string_view text() const { return require(bytes), bytes_; }
  ProtobufFields message() const { return {text(), name_, kind_, offset_ + begin_}; }
  bool more() const { return at_ < text_.size(); }
  /// Next integer of a packed list, which has no tags.
  uint64_t read_varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail_at("an integer of more than 64 bits");
  }
  [[noreturn]] void fail_at(const char* why) const {
    fail(ExitCode::data, "{}: byte {}: {}; not {}, or damaged", name_, offset_ + at_, why, kind_);
  }

 private:
  void require(Type type) const {
    if (type_ != type) fail_at("a field of another type");
  }
  std::string_view take(size_t count) {
    if (count > text_.size() - at_) fail_at("ends inside a field");
    at_ += count;
    return text_.substr(at_ - count, count);
  }
  std::string_view text_;
  const std::string& name_;
  const char* kind_;
  size_t offset_, at_ = 0, begin_ = 0;
  int number_ = 0;
  Type type_ = varint;
  uint64_t value_ = 0;
  std::string_view bytes_;
};

}  // namespace ltrain::data
