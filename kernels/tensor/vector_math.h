// Vectorisable exp, tanh and tail of the normal distribution. Only for *_cpu.cpp files.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/cpu_isa.h"

namespace ltrain::LT_ISA {
namespace {

/// exp(x) in float: range reduction by log 2, then a polynomial of degree 6; relative error below 3e-7 on
/// [-87, 88]; 0 below -87.3.
inline float fast_exp(float x) {
  const float clamped = x < -87.3f ? -87.3f : (x > 88.7f ? 88.7f : x);
  const float shifted = clamped * 1.44269504088896341f + 12582912.0f;  // rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  float r = clamped - n * 0.693359375f;
  r -= n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, 4);
  const int32_t scale_bits = (bits - 0x4b400000 + 127) << 23;
  float scale;
  std::memcpy(&scale, &scale_bits, 4);
  return x < -87.3f ? 0.0f : p * scale;
}
inline double fast_exp(double x) { return std::exp(x); }

/// tanh by exp; absolute error below 3e-7 in float.
inline float fast_tanh(float x) {
  const float e = fast_exp(-2.0f * (x < 0 ? -x : x));
  const float t = (1.0f - e) / (1.0f + e);
  return x < 0 ? -t : t;
}
inline double fast_tanh(double x) { return std::tanh(x); }

/// Probability that a standard normal number is above x >= 0, from bell = exp(-x^2 / 2); absolute error below
/// 3e-7 in float. The ratio of the two is a polynomial in (x - 3) / (x + 3), fitted with a relative error of
/// 1e-8 up to x = 14, where bell is 0 in float.
inline float normal_tail(float x, float bell) {
  const float t = (x - 3.0f) / (x + 3.0f);
  float p = 5.3671883506e-5f;
  p = p * t + 1.1554378580e-4f;
  p = p * t - 3.3948491910e-4f;
  p = p * t - 9.8375848029e-4f;
  p = p * t + 2.9045562260e-3f;
  p = p * t + 6.1320704408e-3f;
  p = p * t - 4.6213291585e-2f;
  p = p * t + 1.2322503328e-1f;
  p = p * t - 2.0640261471e-1f;
  p = p * t + 1.2151394785e-1f;
  return p * bell;
}
inline double normal_tail(double x, double) { return 0.5 * std::erfc(x * 0.7071067811865476); }

}  // namespace
}  // namespace ltrain::LT_ISA
