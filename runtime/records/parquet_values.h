// Decoders of the values in Parquet's pages.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/records/parquet_schema.h"

namespace ltrain::records::parquet {

/// One value: bytes (Physical::bytes, fixed, int96) or a number. Numbers of 32 bits are sign-extended, a
/// floating-point number is its bits.
struct Value {
  const uint8_t* data = nullptr;
  int64_t number = 0;  ///< or the number of bytes

  std::string_view text() const { return {reinterpret_cast<const char*>(data), static_cast<size_t>(number)}; }
  Bytes bytes() const { return {data, static_cast<size_t>(number)}; }
};

class ValueDecoder {
 public:
  virtual ~ValueDecoder() = default;
  /// Decodes 1 to n values, n > 0. They are valid until the next call. Throws Damage if none is left.
  virtual int64_t decode(Value* to, int64_t n) = 0;
};

/// Decoder of a page's `bytes`, which must outlive it, and the dictionary. Throws Damage for an encoding that
/// the leaf's type cannot have. `dictionary` is null if the column chunk has none.
std::unique_ptr<ValueDecoder> make_decoder(int32_t encoding, const Leaf& leaf, Bytes bytes,
                                           const std::vector<Value>* dictionary);

}  // namespace ltrain::records::parquet
