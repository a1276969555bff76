// Codes of 8 bits for saved activations: each group of 128 neighbouring channels of a token has a scale
// (arXiv:2104.14129, 2310.19102; FP8 groups: arXiv:2410.19313). int8 is rounded stochastically, with the
// number itself as the mean, fp8 (e4m3) to nearest.
#pragma once
#include <bit>
#include <cmath>

#include "kernels/tensor/dtype.h"
#include "kernels/tensor/fp8.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/row_random.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

inline constexpr int64_t kGroupChannels = 128;

/// Groups of a row of `cols` channels with `sections` equal sections. A group lies in one section, whose last
/// group may be shorter.
inline int64_t group_count(int64_t cols, int64_t sections) {
  return sections * ((cols / sections + kGroupChannels - 1) / kGroupChannels);
}

/// Codes of a (rows, cols) tensor.
struct GroupCodes {
  Tensor codes;   ///< (rows, cols): u8, two's complement of -127..127; or f8e4m3
  Tensor scales;  ///< (rows, group_count) f64 for an f64 tensor, else f32: an element is code * scale
  int64_t sections = 1;
};

/// x: (rows, cols) f32, f64, bf16 or f16. `random`: this rank has run `part` of each section; on several
/// ranks its runs have full groups. A group with NaN or infinity has no finite element after decode_groups.
void encode_groups(Stream& s, const GroupCodes& to, Tensor x, const RowRandom& random);
/// x = code * scale, rounded to x's dtype.
void decode_groups(Stream& s, Tensor x, const GroupCodes& from);

namespace group_codes {

/// Bits of |x|. They are in the order of magnitudes, with NaN above infinity.
LT_HD inline uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }
LT_HD inline uint64_t magnitude_bits(double x) { return std::bit_cast<uint64_t>(x) & ~(uint64_t{1} << 63); }
LT_HD inline float magnitude_of(uint32_t bits) { return std::bit_cast<float>(bits); }
LT_HD inline double magnitude_of(uint64_t bits) { return std::bit_cast<double>(bits); }

/// Uniform in (0, 1): the middle of one of 2^23 intervals, so that no exact number is rounded.
LT_HD inline float uniform(uint32_t random) { return (static_cast<float>(random >> 9) + 0.5f) * 0x1p-23f; }

/// The code of x for a scale of largest magnitude / 127: v = x / scale is rounded up if its fraction is above
/// `u`.
template <class A>
LT_HD inline uint8_t int8_code(A x, A scale, float u) {
  A v = scale > A(0) ? x / scale : A(0);
  v = v > A(-127) ? v : A(-127);  // NaN too
  v = v < A(127) ? v : A(127);
  const A below = std::floor(v);
  const A code = below + (A(u) < v - below ? A(1) : A(0));
  return static_cast<uint8_t>(static_cast<int8_t>(static_cast<int32_t>(code)));
}

/// The code of x for a scale of largest magnitude / 448.
template <class A>
LT_HD inline uint8_t fp8_code(A x, A scale) {
  return fp8::to_e4m3(static_cast<float>(scale > A(0) ? x / scale : A(0)));
}

template <bool kFp8, class A>
LT_HD inline A number_of(uint8_t code, A scale) {
  if constexpr (kFp8) return static_cast<A>(fp8::from_e4m3(code)) * scale;
  return static_cast<A>(static_cast<int8_t>(code)) * scale;
}

}  // namespace group_codes

/// Layout of the codes, for kernels.
struct SectionedRows {
  int64_t rows = 0, sections = 1, width = 0;  ///< width: channels of a section on this rank
  /// Groups of a section.
  LT_HD int64_t groups() const { return (width + kGroupChannels - 1) / kGroupChannels; }
  /// First channel of section `k` in the full row of all ranks.
  LT_HD int64_t channel(int64_t k, const RowRandomArgs& r) const { return (k * r.parts + r.part) * width; }
};

LT_KERNEL(encode_groups, DType t, bool to_fp8, uint8_t* codes, void* scales, const void* x,
          SectionedRows rows, RowRandomArgs random)
LT_KERNEL(decode_groups, DType t, bool from_fp8, void* x, const uint8_t* codes, const void* scales,
          SectionedRows rows)

}  // namespace ltrain
