#include "runtime/checkpoint/finite.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

namespace ltrain {
namespace {

// Bytes; counts of a block fit into one byte per lane of four registers.
constexpr int64_t kBlock = 8 << 10;

/// An element is not finite if all `bits` of its exponent are set. The test uses integer arithmetic, so
/// floating-point compiler options do not affect it.
struct Exponent {
  int width = 0;  ///< bytes of an element; 0: integer type
  uint64_t bits = 0;
};

Exponent exponent_of(DType type) {
  switch (type) {
    case DType::f32:
      return {4, 0x7f800000u};
    case DType::f64:
      return {8, 0x7ff0000000000000u};
    case DType::bf16:
      return {2, 0x7f80u};
    case DType::f16:
      return {2, 0x7c00u};
    case DType::f8e5m2:
      return {1, 0x7cu};
    case DType::f8e4m3:  // no infinity; NaN has all bits set except the sign
      return {1, 0x7fu};
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::u16:
    case DType::u32:
      return {};
  }
  return {};
}

template <class Bits>
int64_t count_one_by_one(const char* at, int64_t n, uint64_t exponent) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    Bits v;
    std::memcpy(&v, at + i * static_cast<int64_t>(sizeof v), sizeof v);
    count += (v & exponent) == exponent;
  }
  return count;
}

/// All ones in the lanes of elements that are not finite. For f64 the upper half decides.
template <int width>
__m128i marks(__m128i v, __m128i mask) {
  const __m128i masked = _mm_and_si128(v, mask);
  if constexpr (width == 1) return _mm_cmpeq_epi8(masked, mask);
  if constexpr (width == 2) return _mm_cmpeq_epi16(masked, mask);
  const __m128i equal = _mm_cmpeq_epi32(masked, mask);
  return width == 8 ? _mm_and_si128(equal, _mm_set_epi32(-1, 0, -1, 0)) : equal;
}

/// Processes full blocks. `to` is aligned to 16 bytes or null. Stores bypass the caches, because the copy is
/// read next by the thread that writes to the disk and training data should stay cached.
template <int width, class Bits>
int64_t run_blocks(char* to, const char* from, int64_t blocks, Bits exponent) {
  __m128i mask;
  Bits lanes[16 / sizeof(Bits)];
  std::fill(std::begin(lanes), std::end(lanes), exponent);
  std::memcpy(&mask, lanes, sizeof mask);
  int64_t all = 0;
  for (int64_t b = 0; b < blocks; ++b, from += kBlock) {
    __m128i sums[4] = {};
    for (int64_t i = 0; i < kBlock; i += 64) {
      __m128i v[4];
      for (int k = 0; k < 4; ++k) v[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + 16 * k));
      // A mark is -1 in every byte of its lane, so this counts marked bytes.
      for (int k = 0; k < 4; ++k) sums[k] = _mm_sub_epi8(sums[k], marks<width>(v[k], mask));
      if (!to) continue;
      for (int k = 0; k < 4; ++k)
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + b * kBlock + i + 16 * k), v[k]);
    }
    // At most 128 in each byte, one per iteration.
    for (const __m128i& s : sums) {
      const __m128i halves = _mm_sad_epu8(s, _mm_setzero_si128());
      all += _mm_cvtsi128_si64(halves) + _mm_cvtsi128_si64(_mm_srli_si128(halves, 8));
    }
  }
  if (to) _mm_sfence();
  return all / (width == 8 ? 4 : width);  // converts marked bytes to elements
}

/// Counts, and copies if `to` is not null.
int64_t run(DType type, char* to, const char* from, int64_t elements) {
  const Exponent e = exponent_of(type);
  const int64_t bytes = elements * dtype_size(type);
  if (e.width == 0) {
    if (to) std::memcpy(to, from, static_cast<size_t>(bytes));
    return 0;
  }
  const bool aligned = reinterpret_cast<uintptr_t>(to) % 16 == 0;
  const int64_t blocks = aligned ? bytes / kBlock : 0, rest = bytes - blocks * kBlock;
  if (to) std::memcpy(to + blocks * kBlock, from + blocks * kBlock, static_cast<size_t>(rest));
  const char* tail = from + blocks * kBlock;
  switch (e.width) {
    case 1:
      return run_blocks<1>(to, from, blocks, static_cast<uint8_t>(e.bits)) +
             count_one_by_one<uint8_t>(tail, rest, e.bits);
    case 2:
      return run_blocks<2>(to, from, blocks, static_cast<uint16_t>(e.bits)) +
             count_one_by_one<uint16_t>(tail, rest / 2, e.bits);
    case 4:
      return run_blocks<4>(to, from, blocks, static_cast<uint32_t>(e.bits)) +
             count_one_by_one<uint32_t>(tail, rest / 4, e.bits);
    default:
      return run_blocks<8>(to, from, blocks, e.bits) + count_one_by_one<uint64_t>(tail, rest / 8, e.bits);
  }
}

}  // namespace

int64_t count_not_finite(DType type, const void* data, int64_t elements) {
  return run(type, nullptr, static_cast<const char*>(data), elements);
}

int64_t copy_and_check(DType type, void* to, const void* from, int64_t elements) {
  return run(type, static_cast<char*>(to), static_cast<const char*>(from), elements);
}

}  // namespace ltrain
