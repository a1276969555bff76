#include "runtime/records/arrow_array.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/records/encodings/json_value.h"

namespace ltrain::records::arrow {
namespace {

constexpr int64_t kWindow = 1 << 17;
constexpr int64_t kMostRows = int64_t{1} << 31;
constexpr int64_t kMostValues = int64_t{1} << 48;  // positions of numbers then fit 64 bits
constexpr int kMostDictionaryDepth = 128;          // a dictionary's values may have dictionaries

/// Begin and end of element `i` with `size` units.
std::pair<int64_t, int64_t> span_of(int64_t i, int64_t size) {
  int64_t begin = 0, end = 0;
  if (__builtin_mul_overflow(i, size, &begin) || __builtin_add_overflow(begin, size, &end))
    damaged("value {} of {} units is outside every buffer", i, size);
  return {begin, end};
}

}  // namespace

void BufferView::clear() {
  file_ = nullptr;
  size_ = window_begin_ = window_end_ = 0;
}

void BufferView::bind_file(const data::InputFile& file, int64_t begin, int64_t bytes) {
  clear();
  file_ = &file;
  begin_ = begin;
  size_ = bytes;
}

Buffer& BufferView::bind_memory(int64_t bytes) {
  clear();
  window_ = memory_.reset(bytes).data();
  size_ = window_end_ = bytes;
  return memory_;
}

void BufferView::move_window(int64_t offset, int64_t bytes) {
  if (offset < 0 || bytes < 0 || offset > size_ || bytes > size_ - offset)
    damaged("a value has {} bytes at byte {} of a buffer of {}", bytes, offset, size_);
  if (!file_) return;  // all is there
  if (bytes > kMostBytes) damaged("a value has {} bytes, expected at most {}", bytes, kMostBytes);
  const int64_t now = std::min(std::max(bytes, kWindow), size_ - offset);
  window_begin_ = window_end_ = 0;
  const auto to = memory_.reset(now);
  file_->read(to.data(), begin_ + offset, now);
  window_ = to.data();
  window_begin_ = offset;
  window_end_ = offset + now;
}

Batch::Batch(const data::InputFile& f, std::string n, Bytes bytes, const FlatTable& table, int64_t at,
             int64_t size)
    : file(&f), name(std::move(n)), metadata(bytes), body(at), body_bytes(size) {
  rows = table.number<int64_t>(0, 0);
  if (rows < 0 || rows >= kMostRows) damaged("it has {} rows, expected 0 to {}", rows, kMostRows - 1);
  nodes = table.vector(1, 16);
  buffers = table.vector(2, 16);
  variadic = table.vector(4, 8);
  if (const auto compression = table.table(3)) {
    const auto number = compression->number<int8_t>(0, 0);
    if (number != 0 && number != 1)
      damaged("buffers are compressed with the unknown codec {}, expected lz4 or zstd", number);
    codec = number == 0 ? Codec::lz4_frame : Codec::zstd;
  }
}

void Batch::skip(const Field& field) {
  ++node;
  buffer += static_cast<size_t>(field.stored_buffers() + variadic_buffers(field));
  for (const Field& child : field.stored_children()) skip(child);
}

int64_t Batch::variadic_buffers(const Field& field) {
  if (!field.is_view || field.has_dictionary) return 0;
  if (variadic_at >= variadic.size) damaged("it has fewer counts of buffers than the schema has views");
  const auto count = FlatTable::read<int64_t>(metadata, variadic.position + 8 * variadic_at++);
  if (count < 0 || count > static_cast<int64_t>(buffers.size)) damaged("it has {} buffers of a view", count);
  return count;
}

Array::Array(const Field& field) : field_(&field) {
  for (const Field& child : field.stored_children()) children_.emplace_back(child);
}

void Array::bind(Batch& batch, int64_t* memory_budget) {
  if (batch.node >= batch.nodes.size) damaged("it has {} columns, and the schema has more", batch.nodes.size);
  length_ = FlatTable::read<int64_t>(batch.metadata, batch.nodes.position + 16 * batch.node);
  nulls_ = FlatTable::read<int64_t>(batch.metadata, batch.nodes.position + 16 * batch.node + 8);
  if (length_ < 0 || length_ > kMostValues)
    damaged("column {} has {} values", field_->name.substr(0, 100), length_);
  ++batch.node;
  const int buffers = field_->stored_buffers();
  if (buffers > 0) bind_buffer(batch, validity_, memory_budget);
  const bool has_offsets =
      !field_->has_dictionary && !field_->is_view &&
      (field_->kind == Kind::text || field_->kind == Kind::list || field_->kind == Kind::map);
  if (has_offsets) bind_buffer(batch, offsets_, memory_budget);
  if (buffers > (has_offsets ? 2 : 1)) bind_buffer(batch, data_, memory_budget);
  view_data_.resize(static_cast<size_t>(batch.variadic_buffers(*field_)));
  int64_t view_budget = kMostBytes;  // buffers may share bytes of the file, so that many are all the same
  for (BufferView& view : view_data_) bind_buffer(batch, view, memory_budget ? memory_budget : &view_budget);
  for (Array& child : children_) {
    child.bind(batch, memory_budget);
    if (field_->kind == Kind::structure && child.length_ < length_)
      damaged("column {} has {} values, and its struct has {}", child.field_->name.substr(0, 100),
              child.length_, length_);
  }
}

void Array::bind_buffer(Batch& batch, BufferView& view, int64_t* memory_budget) {
  if (batch.buffer >= batch.buffers.size)
    damaged("it has {} buffers, and the schema needs more", batch.buffers.size);
  const size_t at = batch.buffers.position + 16 * batch.buffer++;
  const auto offset = FlatTable::read<int64_t>(batch.metadata, at);
  const auto bytes = FlatTable::read<int64_t>(batch.metadata, at + 8);
  if (offset < 0 || bytes < 0 || offset > batch.body_bytes || bytes > batch.body_bytes - offset)
    damaged("a buffer has {} bytes at byte {} of a body of {}", bytes, offset, batch.body_bytes);
  view.clear();
  if (bytes == 0) return;
  int64_t begin = batch.body + offset, size = bytes, unpacked = -1;
  if (batch.codec != Codec::none) {
    if (bytes < 8) damaged("a compressed buffer has {} bytes, expected 8 or more", bytes);
    batch.file->read(&unpacked, begin, 8);
    begin += 8;
    size -= 8;
  }
  const bool whole = unpacked >= 0 || memory_budget;
  const int64_t needed = unpacked >= 0 ? unpacked : size;
  if (unpacked < -1 || (whole && std::max(needed, size) > kMostBytes))
    damaged("a buffer has {} bytes, expected 0 to {}", needed, kMostBytes);
  if (memory_budget && (*memory_budget -= needed) < 0)
    damaged("dictionaries or views have more than {} bytes", kMostBytes);
  if (!whole) return view.bind_file(*batch.file, begin, size);
  if (unpacked < 0) {
    Buffer& memory = view.bind_memory(size);
    batch.file->read(const_cast<uint8_t*>(memory.bytes().data()), begin, size);
    return;
  }
  if (unpacked > largest_output(batch.codec, size))
    damaged("{} bytes of {} data cannot give the {} bytes that the file says", size, codec_name(batch.codec),
            unpacked);
  thread_local Buffer packed;
  const auto from = packed.reset(size);
  batch.file->read(from.data(), begin, size);
  Buffer& memory = view.bind_memory(unpacked);
  decompress(batch.codec, from, {const_cast<uint8_t*>(memory.bytes().data()), memory.bytes().size()},
             batch.name);
}

bool Array::is_null(int64_t i) {
  if (i < 0 || i >= length_)
    damaged("an index is {}, and column {} has {} values", i, field_->name.substr(0, 100), length_);
  if (field_->kind == Kind::null && !field_->has_dictionary) return true;
  if (nulls_ == 0 || validity_.size() == 0) return false;
  return (*validity_.at(i / 8, 1) >> (i % 8) & 1) == 0;
}

int64_t Array::integer(int64_t i, int width, bool is_signed) {
  const uint8_t* p = data_.at(i * width, width);
  uint64_t value = 0;
  std::memcpy(&value, p, static_cast<size_t>(width));
  const int unused = 64 - 8 * width;
  return is_signed ? static_cast<int64_t>(value << unused) >> unused : static_cast<int64_t>(value);
}

std::pair<int64_t, int64_t> Array::elements(int64_t i) {
  if (field_->kind == Kind::fixed_list) return span_of(i, field_->list_size);
  const int width = field_->width;
  const uint8_t* p = offsets_.at(i * width, 2 * width);
  int64_t ends[2] = {};
  for (int k = 0; k < 2; ++k) {
    if (width == 4) {
      int32_t offset = 0;
      std::memcpy(&offset, p + 4 * k, 4);
      ends[k] = offset;
    } else {
      std::memcpy(&ends[k], p + 8 * k, 8);
    }
  }
  if (ends[0] < 0 || ends[1] < ends[0]) damaged("a value goes from {} to {}", ends[0], ends[1]);
  return {ends[0], ends[1]};
}

std::string_view Array::text(int64_t i) {
  if (field_->kind != Kind::text && field_->kind != Kind::fixed)
    damaged("a dictionary has values of type {}", field_->type.substr(0, 100));
  if (field_->is_view) return viewed_text(i);
  const bool fixed = field_->kind == Kind::fixed;
  const auto [begin, end] = fixed ? span_of(i, field_->width) : elements(i);
  return {reinterpret_cast<const char*>(data_.at(begin, end - begin)), static_cast<size_t>(end - begin)};
}

/// A view has the size, and then the text itself, or its first 4 bytes, the buffer and the offset there.
std::string_view Array::viewed_text(int64_t i) {
  constexpr int32_t kMostInline = 12;
  const uint8_t* view = data_.at(span_of(i, field_->width).first, field_->width);
  int32_t numbers[4] = {};
  std::memcpy(numbers, view, sizeof numbers);
  const auto [size, prefix, buffer, offset] = numbers;
  if (size < 0) damaged("a value has {} bytes", size);
  const uint8_t* text = view + 4;
  if (size > kMostInline) {
    if (buffer < 0 || static_cast<size_t>(buffer) >= view_data_.size())
      damaged("a value is in buffer {} of {}", buffer, view_data_.size());
    text = view_data_[static_cast<size_t>(buffer)].at(offset, size);
  }
  return {reinterpret_cast<const char*>(text), static_cast<size_t>(size)};
}

void Array::append_json(std::string& to, int64_t i, Dictionaries& dictionaries, int depth) {
  if (depth > kMostDictionaryDepth)
    damaged("dictionaries are nested deeper than {} levels", kMostDictionaryDepth);
  if (is_null(i)) {
    to += "null";
    return;
  }
  if (field_->has_dictionary) {
    const auto [array, at] = dictionaries.find(field_->dictionary, index(i));
    return array->append_json(to, at, dictionaries, depth + 1);
  }
  switch (field_->kind) {
    case Kind::null:
      return;
    case Kind::boolean:
      to += *data_.at(i / 8, 1) >> (i % 8) & 1 ? "true" : "false";
      return;
    case Kind::integer: {
      const int64_t value = integer(i, field_->width, field_->is_signed);
      return field_->is_signed ? append_json_integer(to, value)
                               : append_json_unsigned(to, static_cast<uint64_t>(value));
    }
    case Kind::floating: {
      const int64_t bits = integer(i, field_->width, false);
      if (field_->width == 2) return append_json_float(to, float_of_half(static_cast<uint16_t>(bits)));
      if (field_->width == 4) return append_json_float(to, std::bit_cast<float>(static_cast<uint32_t>(bits)));
      return append_json_float(to, std::bit_cast<double>(bits));
    }
    case Kind::text:
    case Kind::fixed:
      append_json_string(to, text(i));
      return check_record_size(to.size(), 0);
    case Kind::decimal: {
      const uint8_t* p = data_.at(i * field_->width, field_->width);
      uint8_t big_endian[32];
      std::reverse_copy(p, p + field_->width, big_endian);
      return append_json_decimal(to, {big_endian, static_cast<size_t>(field_->width)}, field_->scale);
    }
    case Kind::structure:
      return append_struct(to, i, dictionaries, depth);
    case Kind::list:
    case Kind::fixed_list:
    case Kind::map:
      return append_elements(to, i, dictionaries, depth);
    case Kind::other:
      damaged("values of the type {} cannot be read", field_->type.substr(0, 100));
  }
}

void Array::append_struct(std::string& to, int64_t i, Dictionaries& dictionaries, int depth) {
  to += '{';
  for (size_t c = 0; c < children_.size(); ++c) {
    if (c > 0) to += ", ";
    append_json_string(to, children_[c].field_->name);
    to += ": ";
    children_[c].append_json(to, i, dictionaries, depth + 1);
  }
  to += '}';
}

/// A list as an array; a map as an object if its keys are text, and else as an array of key and value.
void Array::append_elements(std::string& to, int64_t i, Dictionaries& dictionaries, int depth) {
  const auto [begin, end] = elements(i);
  Array& values = children_[0];
  const bool object = field_->kind == Kind::map && values.field_->children[0].kind == Kind::text;
  to += object ? '{' : '[';
  for (int64_t k = begin; k < end; ++k) {
    if (k > begin) to += ", ";
    if (object) {
      const size_t at = to.size();
      values.child(0).append_json(to, k, dictionaries, depth + 1);
      if (to[at] != '"') damaged("a key of a map is null");
      to += ": ";
      values.child(1).append_json(to, k, dictionaries, depth + 1);
    } else {
      values.append_json(to, k, dictionaries, depth + 1);
    }
    check_record_size(to.size(), 0);
  }
  to += object ? '}' : ']';
}

void Dictionaries::need(const Field& field) {
  if (field.has_dictionary) fields_.emplace(field.dictionary, &field);
  for (const Field& child : field.children) need(child);
}

void Dictionaries::read(const FlatTable& table, Batch batch) {
  const auto id = table.number<int64_t>(0, 0);
  const bool appended = table.number<uint8_t>(2, 0) != 0;
  const auto found = fields_.find(id);
  if (found == fields_.end()) return;
  auto& values = values_[id];
  if (!values) {
    values = std::make_unique<Field>(*found->second);
    values->has_dictionary = false;
  }
  Values& loaded = loaded_[id];
  if (!appended) {
    bytes_ -= loaded.bytes;
    loaded = {};
  }
  constexpr int64_t kArray = 2000;  // memory of an array without its buffers
  int64_t budget = kMostBytes - bytes_ - kArray;
  auto array = std::make_unique<Array>(*values);
  array->bind(batch, &budget);
  const int64_t used = kMostBytes - bytes_ - budget, end = loaded.ends.empty() ? 0 : loaded.ends.back();
  bytes_ += used;
  loaded.bytes += used;
  loaded.ends.push_back(end + array->length());
  loaded.arrays.push_back(std::move(array));
}

std::pair<Array*, int64_t> Dictionaries::find(int64_t id, int64_t index) {
  const Values& loaded = loaded_[id];
  const auto found = std::upper_bound(loaded.ends.begin(), loaded.ends.end(), index);
  if (index < 0 || found == loaded.ends.end())
    damaged("an index is {}, and dictionary {} has {} values", index, id,
            loaded.ends.empty() ? 0 : loaded.ends.back());
  Array& array = *loaded.arrays[static_cast<size_t>(found - loaded.ends.begin())];
  return {&array, index - (*found - array.length())};
}

std::pair<Array*, int64_t> resolve(Array& array, int64_t i, Dictionaries& dictionaries) {
  Array* at = &array;
  for (int depth = 0; !at->is_null(i) && at->field().has_dictionary; ++depth) {
    if (depth > kMostDictionaryDepth)
      damaged("dictionaries are nested deeper than {} levels", kMostDictionaryDepth);
    std::tie(at, i) = dictionaries.find(at->field().dictionary, at->index(i));
  }
  return {at, i};
}

}  // namespace ltrain::records::arrow
