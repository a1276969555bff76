#include "runtime/records/encodings/flatbuffer.h"

namespace ltrain::records {

FlatTable FlatTable::root(Bytes buffer) {
  if (buffer.size() < 8) damaged("metadata has {} bytes, expected 8 or more", buffer.size());
  return {buffer, read<uint32_t>(buffer, 0)};
}

FlatTable::FlatTable(Bytes buffer, size_t position) : buffer_(buffer), position_(position) {
  check(position, 4);
  const int64_t table = static_cast<int64_t>(position) - read<int32_t>(buffer, position);
  if (table < 0) damaged("metadata points before its start");
  table_ = static_cast<size_t>(table);
  check(table_, 4);
  table_bytes_ = read<uint16_t>(buffer, table_);
  check(table_, table_bytes_);
}

void FlatTable::check(size_t at, size_t bytes) const {
  if (at > buffer_.size() || bytes > buffer_.size() - at)
    damaged("metadata points {} bytes behind its start, and has {}", at, buffer_.size());
}

size_t FlatTable::position_of(int field, size_t bytes) const {
  const size_t entry = 4 + 2 * static_cast<size_t>(field);
  if (entry + 2 > table_bytes_) return 0;
  const size_t offset = read<uint16_t>(buffer_, table_ + entry);
  if (offset == 0) return 0;
  check(position_ + offset, bytes);
  return position_ + offset;
}

size_t FlatTable::target(size_t at) const { return at + read<uint32_t>(buffer_, at); }

std::optional<FlatTable> FlatTable::table(int field) const {
  const size_t at = position_of(field, 4);
  if (at == 0) return std::nullopt;
  return FlatTable(buffer_, target(at));
}

FlatVector FlatTable::vector(int field, size_t bytes) const {
  const size_t at = position_of(field, 4);
  if (at == 0) return {};
  const size_t start = target(at);
  check(start, 4);
  const size_t size = read<uint32_t>(buffer_, start);
  check(start + 4, size * bytes);
  return {start + 4, size};
}

std::string_view FlatTable::text(int field) const {
  const FlatVector v = vector(field, 1);
  return {reinterpret_cast<const char*>(buffer_.data()) + v.position, v.size};
}

FlatTable FlatTable::element(const FlatVector& vector, size_t i) const {
  return {buffer_, target(vector.position + 4 * i)};
}

}  // namespace ltrain::records
