// The two FP8 formats (arXiv:2209.05433): e4m3, without infinities, largest number 448; e5m2, largest number
// 57344. Functions convert between floats and codes, on every device.
#pragma once
#include <cstdint>
#include <cstring>

#include "kernels/tensor/dtype.h"

namespace ltrain {

constexpr bool is_fp8(DType t) { return t == DType::f8e4m3 || t == DType::f8e5m2; }

/// Exponent e of the largest number of a format, 1.75 * 2^e.
constexpr int fp8_top_exponent(DType t) { return t == DType::f8e4m3 ? 8 : 15; }

namespace fp8 {

LT_HD inline uint32_t bits_of(float v) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  return u;
}
LT_HD inline float float_of(uint32_t u) {
  float v;
  std::memcpy(&v, &u, 4);
  return v;
}
LT_HD inline bool finite(float v) { return (bits_of(v) & 0x7fffffffu) < 0x7f800000u; }

/// Rounds to nearest, ties to even. Saturates at the largest number; infinity and NaN become NaN.
/// Branch-free, so that loops over it are vectorised.
LT_HD inline uint8_t to_e4m3(float v) {
  const uint32_t u = bits_of(v), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
  const uint32_t normal = (a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20;
  // Below 2^-6 the last bit is worth 2^-9, like the last bit of a float in [2^14, 2^15).
  const uint32_t subnormal = bits_of(float_of(a) + 16384.0f) - 0x46800000u;
  const uint32_t large = a >= 0x7f800000u ? 0x7fu : 0x7eu;
  const uint32_t finite = a < 0x3c800000u ? subnormal : normal;
  // From 464 on, midway between 448 and the missing code above it, codes saturate.
  return static_cast<uint8_t>(sign | (a < 0x43e80000u ? finite : large));
}
/// Rounds to nearest, ties to even. Saturates at the largest number; infinity stays infinite, NaN stays NaN.
LT_HD inline uint8_t to_e5m2(float v) {
  const uint32_t u = bits_of(v), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
  const uint32_t normal = (a - 0x38000000u + 0xfffffu + ((a >> 21) & 1u)) >> 21;
  const uint32_t subnormal = bits_of(float_of(a) + 128.0f) - 0x43000000u;
  const uint32_t special = a > 0x7f800000u ? 0x7eu : 0x7cu;
  const uint32_t large = a >= 0x7f800000u ? special : 0x7bu;
  const uint32_t finite = a < 0x38800000u ? subnormal : normal;
  return static_cast<uint8_t>(sign | (a < 0x47700000u ? finite : large));  // 61440
}
LT_HD inline float from_e4m3(uint8_t code) {
  const uint32_t a = code & 0x7fu, sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t normal = (a << 20) + 0x3c000000u;
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(a)) * 0x1p-9f);
  const uint32_t finite = a < 8u ? subnormal : normal;
  return float_of(sign | (a == 0x7fu ? 0x7fc00000u : finite));
}
LT_HD inline float from_e5m2(uint8_t code) {
  const uint32_t a = code & 0x7fu, sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t normal = (a << 21) + (a >= 0x7cu ? 0x70000000u : 0x38000000u);
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(a)) * 0x1p-16f);
  return float_of(sign | (a < 4u ? subnormal : normal));
}

/// Quantization step of a tensor with largest magnitude `amax`: the smallest power of two, times 2^margin,
/// with which every element fits the format, so that x = code * step is exact. 1 if amax is 0 or not finite.
/// `top`: fp8_top_exponent.
LT_HD inline float step_of(float amax, int top, int margin) {
  const uint32_t a = bits_of(amax) & 0x7fffffffu;
  if (a == 0 || a >= 0x7f800000u) return 1.0f;
  const int exponent = static_cast<int>(a >> 23) - 127 + ((a & 0x7fffffu) > 0x600000u ? 1 : 0) - top + margin;
  // Between 2^-126 and 2^126 the step and its inverse are normal numbers.
  const int kept = exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
  return float_of(static_cast<uint32_t>(kept + 127) << 23);
}

}  // namespace fp8

/// The formats as types for kernels.
struct E4m3 {
  LT_HD static uint8_t to(float v) { return fp8::to_e4m3(v); }
  LT_HD static float from(uint8_t c) { return fp8::from_e4m3(c); }
};
struct E5m2 {
  LT_HD static uint8_t to(float v) { return fp8::to_e5m2(v); }
  LT_HD static float from(uint8_t c) { return fp8::from_e5m2(c); }
};

/// Calls f.template operator()<E>() with the type of a format.
template <class F>
decltype(auto) dispatch_fp8(DType t, F&& f) {
  LT_CHECK(is_fp8(t), "expected an FP8 dtype (f8e4m3, f8e5m2), got {}", dtype_name(t));
  return t == DType::f8e4m3 ? f.template operator()<E4m3>() : f.template operator()<E5m2>();
}

}  // namespace ltrain
