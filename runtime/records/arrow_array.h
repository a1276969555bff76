// Columns of one Arrow record batch. Throws Damage.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/files/file.h"
#include "runtime/records/arrow_schema.h"
#include "runtime/records/encodings/codec.h"

namespace ltrain::records::arrow {

/// Bytes of a buffer: a window of the file, or all in memory.
class BufferView {
 public:
  void bind_file(const data::InputFile& file, int64_t begin, int64_t bytes);
  /// Memory for `bytes` bytes, to be filled by the caller.
  Buffer& bind_memory(int64_t bytes);
  void clear();
  int64_t size() const { return size_; }

  /// `bytes` bytes at `offset`, valid until the next call. Throws Damage outside the buffer.
  const uint8_t* at(int64_t offset, int64_t bytes) {
    if (offset < window_begin_ || bytes > window_end_ - offset || offset > window_end_)
      move_window(offset, bytes);
    return window_ + (offset - window_begin_);
  }

 private:
  void move_window(int64_t offset, int64_t bytes);

  const data::InputFile* file_ = nullptr;  // null: in memory
  int64_t begin_ = 0, size_ = 0;           // in the file
  Buffer memory_;
  const uint8_t* window_ = nullptr;
  int64_t window_begin_ = 0, window_end_ = 0;  // in the buffer
};

/// A record batch in the file, and the next field's nodes and buffers.
struct Batch {
  const data::InputFile* file = nullptr;
  std::string name;  ///< for messages of codecs
  Bytes metadata;
  int64_t rows = 0, body = 0, body_bytes = 0;
  FlatVector nodes, buffers, variadic;
  size_t node = 0, buffer = 0, variadic_at = 0;
  Codec codec = Codec::none;

  /// Reads the table RecordBatch. `body`: position in the file.
  Batch(const data::InputFile& file, std::string name, Bytes metadata, const FlatTable& table, int64_t body,
        int64_t body_bytes);
  void skip(const Field& field);                 ///< goes behind the nodes and buffers of the field
  int64_t variadic_buffers(const Field& field);  ///< takes the count of buffers behind those of a view
};

class Dictionaries;

/// A column, or a part of a nested one. It is bound to each batch in turn.
class Array {
 public:
  explicit Array(const Field& field);
  /// Takes the field's nodes and buffers. With `memory_budget` reads all of them, and lowers the budget, in
  /// bytes.
  void bind(Batch& batch, int64_t* memory_budget = nullptr);

  const Field& field() const { return *field_; }
  int64_t length() const { return length_; }
  /// `i` must be less than length().
  bool is_null(int64_t i);

  // Value `i`, which is not null, without its dictionary.
  int64_t integer(int64_t i, int width, bool is_signed);
  int64_t index(int64_t i) { return integer(i, field_->index_width, field_->index_signed); }
  std::string_view text(int64_t i);
  void append_json(std::string& to, int64_t i, Dictionaries& dictionaries, int depth);
  /// Elements of a list: begin and end in child 0.
  std::pair<int64_t, int64_t> elements(int64_t i);
  Array& child(size_t i) { return children_[i]; }

 private:
  void bind_buffer(Batch& batch, BufferView& view, int64_t* memory_budget);
  std::string_view viewed_text(int64_t i);
  void append_elements(std::string& to, int64_t i, Dictionaries& dictionaries, int depth);
  void append_struct(std::string& to, int64_t i, Dictionaries& dictionaries, int depth);

  const Field* field_;
  int64_t length_ = 0, nulls_ = 0;
  BufferView validity_, offsets_, data_;
  std::vector<BufferView> view_data_;  // bytes of the texts that do not fit into their view
  std::vector<Array> children_;
};

/// Dictionaries of a file. Each is a list of arrays: the first, and those that were appended later.
class Dictionaries {
 public:
  /// Notes the dictionaries of a field and the fields below it.
  void need(const Field& field);
  /// Reads a DictionaryBatch.
  void read(const FlatTable& table, Batch batch);
  bool needs(int64_t id) const { return fields_.contains(id); }
  /// The array and the index in it of a value.
  std::pair<Array*, int64_t> find(int64_t id, int64_t index);

 private:
  std::map<int64_t, const Field*> fields_;
  std::map<int64_t, std::unique_ptr<Field>> values_;  // the fields without their dictionary
  struct Values {
    std::vector<std::unique_ptr<Array>> arrays;
    std::vector<int64_t> ends;  // count of values up to the end of each
    int64_t bytes = 0;          // memory
  };
  std::map<int64_t, Values> loaded_;
  int64_t bytes_ = 0;  // memory of all
};

/// The array and the index that have the value `i`: the dictionary's, or these. A null index gives null.
std::pair<Array*, int64_t> resolve(Array& array, int64_t i, Dictionaries& dictionaries);

}  // namespace ltrain::records::arrow
