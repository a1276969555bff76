// Element types.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "kernels/tensor/host_device.h"

namespace ltrain {

enum class DType : uint8_t { f32, f64, bf16, f16, i32, i64, u8, u16, u32, f8e4m3, f8e5m2 };

constexpr int64_t dtype_size(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return 1;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType t) {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
    case DType::u16:
      return "u16";
    case DType::u32:
      return "u32";
    case DType::f8e4m3:
      return "f8e4m3";
    case DType::f8e5m2:
      return "f8e5m2";
  }
  return "?";
}

/// bfloat16: the upper half of a float. Conversion from float rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  LT_HD explicit bf16(float v) {
    const uint32_t u = std::bit_cast<uint32_t>(v);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
  }
  LT_HD operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

/// The bits of a float rounded to half precision (to nearest, ties to even; infinity beyond 65504; NaN stays
/// NaN), and the float of such bits. Branch-free, so that loops over them are vectorised.
LT_HD inline uint16_t f16_bits(float v) {
#ifdef __CUDA_ARCH__
  uint16_t out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(v));
  return out;
#else
  uint32_t u;
  std::memcpy(&u, &v, 4);
  const uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  const uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  float magnitude;
  std::memcpy(&magnitude, &a, 4);
  const float shifted = magnitude + 0.5f;  // last bit worth 2^-24, as in a subnormal half
  uint32_t subnormal;
  std::memcpy(&subnormal, &shifted, 4);
  subnormal -= 0x3f000000u;
  const uint32_t finite = a < 0x38800000u ? subnormal : normal;
  const uint32_t large = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return static_cast<uint16_t>(sign | (a < 0x47800000u ? finite : large));
#endif
}
LT_HD inline float f16_value(uint16_t h) {
#ifdef __CUDA_ARCH__
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(h));
  return out;
#else
  const uint32_t a = h & 0x7fffu, sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t normal = (a << 13) + (a >= 0x7c00u ? 0x70000000u : 0x38000000u);
  const float small = static_cast<float>(static_cast<int32_t>(a)) * 0x1p-24f;
  uint32_t subnormal;
  std::memcpy(&subnormal, &small, 4);
  const uint32_t u = sign | (a < 0x400u ? subnormal : normal);
  float v;
  std::memcpy(&v, &u, 4);
  return v;
#endif
}

/// IEEE 754 half precision.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  LT_HD explicit f16(float v) : bits(f16_bits(v)) {}
  LT_HD operator float() const { return f16_value(bits); }
};

/// Loads x[i] in the arithmetic type, and stores it. GCC 12 vectorises a loop over these, but not a loop over
/// bf16 objects.
LT_HD inline float get(const float* x, int64_t i) { return x[i]; }
LT_HD inline double get(const double* x, int64_t i) { return x[i]; }
LT_HD inline float get(const bf16* x, int64_t i) {
  const uint32_t u = static_cast<uint32_t>(x[i].bits) << 16;
  float v;
  std::memcpy(&v, &u, 4);  // not bit_cast: the vectoriser stops at it
  return v;
}
LT_HD inline float get(const f16* x, int64_t i) { return f16_value(x[i].bits); }
LT_HD inline void put(float* x, int64_t i, float v) { x[i] = v; }
LT_HD inline void put(double* x, int64_t i, double v) { x[i] = v; }
LT_HD inline void put(bf16* x, int64_t i, float v) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  x[i].bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

LT_HD inline void put(f16* x, int64_t i, float v) { x[i].bits = f16_bits(v); }

template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of<uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct dtype_of<uint32_t> {
  static constexpr DType value = DType::u32;
};

/// Arithmetic type of an element type: double computes in double, everything else in float.
template <class T>
struct compute_of {
  using type = float;
};
template <>
struct compute_of<double> {
  using type = double;
};
template <class T>
using compute_t = typename compute_of<T>::type;

/// True for the 16-bit types, which compute in float.
constexpr bool is_half(DType t) { return t == DType::bf16 || t == DType::f16; }
template <class T>
inline constexpr bool is_half_v = is_half(dtype_of<T>::value);

/// Calls f.template operator()<T>() with the C++ type of a 16-bit dtype.
template <class F>
decltype(auto) dispatch_half(DType t, F&& f) {
  return t == DType::f16 ? f.template operator()<f16>() : f.template operator()<bf16>();
}

/// Calls f.template operator()<T>() with double for f64, and with float for all other dtypes.
template <class F>
decltype(auto) dispatch_wide(DType t, F&& f) {
  return t == DType::f64 ? f.template operator()<double>() : f.template operator()<float>();
}

/// Calls f.template operator()<T>() with the C++ type of a floating dtype (f32, f64, bf16, f16).
template <class F>
decltype(auto) dispatch_float(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<f16>();
    default:
      fail(ExitCode::internal, "no kernel for dtype {}", dtype_name(t));
  }
}

}  // namespace ltrain
