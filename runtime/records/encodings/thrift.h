// Reader of Thrift's compact protocol, in which Parquet writes its metadata. Throws Damage.
#pragma once
#include <string_view>

#include "runtime/records/encodings/damage.h"

namespace ltrain::records {

class ThriftReader {
 public:
  enum Type : uint8_t {
    kTrue = 1,
    kFalse = 2,
    kI8 = 3,
    kI16 = 4,
    kI32 = 5,
    kI64 = 6,
    kDouble = 7,
    kBinary = 8,
    kList = 9,
    kSet = 10,
    kMap = 11,
    kStruct = 12,
  };

  explicit ThriftReader(Bytes bytes) : begin_(bytes.data()), p_(begin_), end_(begin_ + bytes.size()) {}

  size_t position() const { return static_cast<size_t>(p_ - begin_); }
  bool at_end_of_input() const { return cut_; }  ///< the last Damage came from missing bytes

  /// Reads a struct. `field(id, type)` reads the value of a field and returns true, or returns false to skip
  /// it.
  template <class Field>
  void read_struct(Field&& field) {
    enter();
    int id = 0;
    while (const int head = byte()) {
      id = head >> 4 ? id + (head >> 4) : static_cast<int>(zigzag());
      const Type type = checked(head & 15);
      if (!field(id, type)) skip(type);
    }
    --depth_;
  }
  /// Reads a list, a value of a field with type `type`. `element()` reads one element of type `expected`.
  template <class Element>
  void read_list(Type type, Type expected, Element&& element) {
    for (int64_t left = list_size(type, expected); left > 0; --left) element();
  }

  int64_t integer(Type type);  ///< value of a field with an integer type
  int32_t int32(Type type);
  bool boolean(Type type);
  std::string_view binary(Type type);
  std::string_view binary_element() { return binary(kBinary); }  ///< element of a list
  void expect(Type type, Type expected) const;
  void skip(Type type);
  int64_t list_size(Type type, Type expected);

 private:
  int byte();
  uint64_t varint();
  int64_t zigzag();
  Type checked(int type) const;
  void enter();
  void skip_element(Type type);
  void skip_bytes(uint64_t bytes);

  const uint8_t *begin_, *p_, *end_;
  int depth_ = 0;
  bool cut_ = false;
};

}  // namespace ltrain::records
