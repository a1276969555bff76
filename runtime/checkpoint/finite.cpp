#include "runtime/checkpoint/finite.h"

#include <algorithm>
#include <cstring>

namespace ltrain {
namespace {

constexpr int64_t kBlock = 64 << 10;  // bytes: stays in the second-level cache between copy and count

/// Numbers whose exponent bits are all set. Integer arithmetic, so that compilers vectorise it and
/// -ffast-math could not remove it. A block's count fits the type, so that lanes are as wide as elements.
template <class Bits>
int64_t count_ones(const void* data, int64_t n, Bits exponent) {
  const char* at = static_cast<const char*>(data);
  constexpr int64_t most = sizeof(Bits) == 1 ? 255 : sizeof(Bits) == 2 ? 65535 : INT32_MAX;
  int64_t all = 0;
  while (n > 0) {
    const int64_t part = std::min(n, most);
    Bits count = 0;
    for (int64_t i = 0; i < part; ++i) {
      Bits v;
      std::memcpy(&v, at + i * static_cast<int64_t>(sizeof v), sizeof v);
      count = static_cast<Bits>(count + ((v & exponent) == exponent));
    }
    all += count;
    at += part * static_cast<int64_t>(sizeof(Bits));
    n -= part;
  }
  return all;
}

}  // namespace

int64_t count_not_finite(DType type, const void* data, int64_t n) {
  switch (type) {
    case DType::f32:
      return count_ones<uint32_t>(data, n, 0x7f800000u);
    case DType::f64:
      return count_ones<uint64_t>(data, n, 0x7ff0000000000000u);
    case DType::bf16:
      return count_ones<uint16_t>(data, n, 0x7f80u);
    case DType::f16:
      return count_ones<uint16_t>(data, n, 0x7c00u);
    case DType::f8e5m2:
      return count_ones<uint8_t>(data, n, 0x7cu);
    case DType::f8e4m3:  // has no infinity, and NaN with all bits but the sign alone
      return count_ones<uint8_t>(data, n, 0x7fu);
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::u16:
    case DType::u32:
      return 0;
  }
  return 0;
}

int64_t copy_and_check(DType type, void* to, const void* from, int64_t elements) {
  const int64_t size = dtype_size(type), bytes = elements * size;
  int64_t bad = 0;
  for (int64_t at = 0; at < bytes; at += kBlock) {
    const int64_t n = std::min(kBlock, bytes - at);
    std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, static_cast<size_t>(n));
    bad += count_not_finite(type, static_cast<const char*>(to) + at, n / size);
  }
  return bad;
}

}  // namespace ltrain
