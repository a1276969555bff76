// Fake quantization of weights for quantization-aware training (arXiv:1712.05877): a weight is a code of 4 or
// 8 bits times the scale of its group, symmetric around zero, with the arithmetic of compressed-tensors.
#pragma once
#include <type_traits>

#include "kernels/optimizer/weight_codes.h"
#include "kernels/tensor/fp8.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// out = code * scale of each group of `group` neighbours of w, as quantize_group() has them. out, w: (n), n
/// a multiple of `group`; out may alias w. `type`: dtype of scales and products, to which both are rounded.
/// Dtypes of out, w and `type`: all f64; or out of f32 or `type`, w of f32, and `type` f32, bf16 or f16.
void fake_quantize(Stream& s, Tensor out, Tensor w, WeightCodes codes, int64_t group, DType type);

namespace quantized {

/// Code of the largest magnitude of a group. compressed-tensors' own scales divide by 7.5 and 127.5. Then the
/// largest weight of a group is midway between two codes, and the last bit of a sum chooses one of them.
LT_HD constexpr float largest_code(WeightCodes c) {
  return c == WeightCodes::int4 ? 7.0f : c == WeightCodes::int8 ? 127.0f : 448.0f;
}

/// A rounded to T.
template <class T, class A>
LT_HD inline A rounded(A v) {
  if constexpr (std::is_same_v<T, A>) {
    return v;
  } else {
    T t;
    put(&t, 0, v);
    return get(&t, 0);
  }
}

/// Scale of a group with largest magnitude `amax`: never zero, so that a group of zeros has codes of zero.
template <class T, class A>
LT_HD inline A scale_of(A amax, WeightCodes c) {
  const A scale = rounded<T>(amax / static_cast<A>(largest_code(c)));
  // The distance from 1 to the next number of T.
  const A epsilon = sizeof(T) == 8            ? static_cast<A>(0x1p-52)
                    : sizeof(T) == 4          ? static_cast<A>(0x1p-23)
                    : std::is_same_v<T, bf16> ? static_cast<A>(0x1p-7)
                                              : static_cast<A>(0x1p-10);
  return scale == A(0) ? epsilon : scale;
}

/// The code of w as a number: rounded to nearest, ties to even; NaN stays NaN.
template <WeightCodes C, class A>
LT_HD inline A code_of(A w, A scale) {
  const A highest = C == WeightCodes::int4 ? A(7) : C == WeightCodes::int8 ? A(127) : A(448);
  const A lowest = C == WeightCodes::fp8 ? -highest : -highest - 1;
  A v = w / scale;
  v = v < lowest ? lowest : v;
  v = v > highest ? highest : v;
  if constexpr (C == WeightCodes::fp8) {
    return static_cast<A>(fp8::from_e4m3(fp8::to_e4m3(static_cast<float>(v))));
  } else {
    // The last bit of a number this large is worth 1. Unlike rint, it makes no zero with a sign.
    const A large = sizeof(A) == 8 ? static_cast<A>(0x1.8p52) : static_cast<A>(0x1.8p23);
    return (v + large) - large;
  }
}

}  // namespace quantized

/// Calls f.template operator()<X, W, T>() with the types of fake_quantize's out, w and `type`.
template <class F>
void dispatch_quantized(DType out, DType type, F&& f) {
  if (type == DType::f64) return f.template operator()<double, double, double>();
  if (type == DType::f32) return f.template operator()<float, float, float>();
  if (type == DType::bf16)
    return out == DType::f32 ? f.template operator()<float, float, bf16>()
                             : f.template operator()<bf16, float, bf16>();
  return out == DType::f32 ? f.template operator()<float, float, f16>()
                           : f.template operator()<f16, float, f16>();
}

/// Calls f.template operator()<C>() with the codes.
template <class F>
void dispatch_codes(WeightCodes codes, F&& f) {
  if (codes == WeightCodes::int4) return f.template operator()<WeightCodes::int4>();
  if (codes == WeightCodes::int8) return f.template operator()<WeightCodes::int8>();
  return f.template operator()<WeightCodes::fp8>();
}

LT_KERNEL(fake_quantize, DType to, DType type, void* out, const void* w, WeightCodes codes, int64_t group,
          int64_t n)

}  // namespace ltrain
