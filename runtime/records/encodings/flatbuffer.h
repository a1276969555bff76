// Reader of flatbuffers, in which Arrow writes its metadata. Each access is checked; throws Damage.
#pragma once
#include <cstring>
#include <optional>
#include <string_view>

#include "runtime/records/encodings/damage.h"

namespace ltrain::records {

/// Elements of a vector, in the buffer.
struct FlatVector {
  size_t position = 0;  ///< first element
  size_t size = 0;      ///< elements
};

class FlatTable {
 public:
  /// The root table of a buffer, which must outlive it.
  static FlatTable root(Bytes buffer);

  /// A number or boolean; `otherwise` if the table does not have the field.
  template <class T>
  T number(int field, T otherwise) const {
    const size_t at = position_of(field, sizeof(T));
    return at == 0 ? otherwise : read<T>(buffer_, at);
  }
  std::optional<FlatTable> table(int field) const;
  std::string_view text(int field) const;  ///< empty without the field
  /// A vector of elements of `bytes` bytes; empty without the field.
  FlatVector vector(int field, size_t bytes) const;
  /// Element `i` of a vector of tables.
  FlatTable element(const FlatVector& vector, size_t i) const;

  /// A number at a position that was checked.
  template <class T>
  static T read(Bytes buffer, size_t at) {
    T value;
    std::memcpy(&value, buffer.data() + at, sizeof value);
    return value;
  }

 private:
  FlatTable(Bytes buffer, size_t position);
  /// Position of a field of `bytes` bytes, or 0.
  size_t position_of(int field, size_t bytes) const;
  /// Position to which the offset at `at` points.
  size_t target(size_t at) const;
  void check(size_t at, size_t bytes) const;

  Bytes buffer_;
  size_t position_ = 0, table_ = 0, table_bytes_ = 0;  // the table, and its vtable
};

}  // namespace ltrain::records
