#include "runtime/records/encodings/thrift.h"

#include <limits>

namespace ltrain::records {
namespace {

constexpr int kMostMetadataDepth = 32;  // Parquet's metadata has 8 levels

}  // namespace

int ThriftReader::byte() {
  if (p_ == end_) {
    cut_ = true;
    damaged("metadata ends in the middle of a value");
  }
  return *p_++;
}

uint64_t ThriftReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    const auto b = static_cast<uint64_t>(byte());
    if (shift == 63 && b > 1) break;
    value |= (b & 0x7F) << shift;
    if (b < 0x80) return value;
  }
  damaged("metadata has an integer of more than 64 bits");
}

int64_t ThriftReader::zigzag() {
  const uint64_t v = varint();
  return static_cast<int64_t>(v >> 1 ^ (~(v & 1) + 1));
}

ThriftReader::Type ThriftReader::checked(int type) const {
  if (type < kTrue || type > kStruct) damaged("metadata has a value of the unknown Thrift type {}", type);
  return static_cast<Type>(type);
}

void ThriftReader::enter() {
  if (++depth_ > kMostMetadataDepth) damaged("metadata is nested deeper than {} levels", kMostMetadataDepth);
}

void ThriftReader::expect(Type type, Type expected) const {
  if (type != expected)
    damaged("metadata has a value of Thrift type {}, expected type {}", static_cast<int>(type),
            static_cast<int>(expected));
}

int64_t ThriftReader::integer(Type type) {
  if (type == kI8) return static_cast<int8_t>(byte());
  if (type != kI16 && type != kI32) expect(type, kI64);
  return zigzag();
}

int32_t ThriftReader::int32(Type type) {
  const int64_t value = integer(type);
  if (value != static_cast<int32_t>(value))
    damaged("metadata has the number {}, expected one of 32 bits", value);
  return static_cast<int32_t>(value);
}

bool ThriftReader::boolean(Type type) {
  if (type != kTrue) expect(type, kFalse);
  return type == kTrue;
}

std::string_view ThriftReader::binary(Type type) {
  expect(type, kBinary);
  const uint64_t size = varint();
  const auto* start = p_;
  skip_bytes(size);
  return {reinterpret_cast<const char*>(start), static_cast<size_t>(size)};
}

void ThriftReader::skip_bytes(uint64_t bytes) {
  if (bytes > static_cast<uint64_t>(end_ - p_)) {
    cut_ = bytes < std::numeric_limits<int32_t>::max();
    damaged("metadata has a value of {} bytes where {} are left", bytes, end_ - p_);
  }
  p_ += bytes;
}

int64_t ThriftReader::list_size(Type type, Type expected) {
  if (type != kSet) expect(type, kList);
  const int head = byte();
  const uint64_t size = head >> 4 == 15 ? varint() : static_cast<uint64_t>(head >> 4);
  if (size == 0) return 0;
  expect(checked(head & 15), expected);
  if (size > static_cast<uint64_t>(end_ - p_)) {  // an element takes at least a byte
    cut_ = size < std::numeric_limits<int32_t>::max();
    damaged("metadata has a list of {} elements in {} bytes", size, end_ - p_);
  }
  return static_cast<int64_t>(size);
}

void ThriftReader::skip_element(Type type) {
  if (type == kTrue || type == kFalse)
    byte();  // in lists and maps a byte, in structs part of the type
  else
    skip(type);
}

void ThriftReader::skip(Type type) {
  switch (type) {
    case kTrue:
    case kFalse:
      return;
    case kI8:
      byte();
      return;
    case kI16:
    case kI32:
    case kI64:
      varint();
      return;
    case kDouble:
      return skip_bytes(8);
    case kBinary:
      return skip_bytes(varint());
    case kList:
    case kSet: {
      enter();
      const int head = byte();
      for (uint64_t left = head >> 4 == 15 ? varint() : static_cast<uint64_t>(head >> 4); left > 0; --left)
        skip_element(checked(head & 15));
      --depth_;
      return;
    }
    case kMap: {
      enter();
      uint64_t left = varint();
      const int types = left > 0 ? byte() : 0;
      for (; left > 0; --left) skip_element(checked(types >> 4)), skip_element(checked(types & 15));
      --depth_;
      return;
    }
    case kStruct:
      return read_struct([](int, Type) { return false; });
  }
}

}  // namespace ltrain::records
