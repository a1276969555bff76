// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC11). A value is a pure function of
// (seed, stream, index), so it is the same under every layout, thread count and device.
#pragma once
#include <cmath>
#include <cstdint>
#include <string_view>
#include "kernels/tensor/host_device.h"

namespace ltrain {

/// 64-bit FNV-1a, for stream keys made from names.
constexpr uint64_t hash_name(std::string_view s) {
  uint64_t h = 14695981039346656037ull;
  for (char c : s) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return h;
}

struct Philox4 {
  uint32_t v[4];
};

/// Four independent 32-bit values for counter (index, stream) under key `seed`.
LT_HD inline Philox4 philox(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0,
                   n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Seed of values that are drawn anew in every step.
inline uint64_t seed_of_step(uint64_t seed, int64_t step) {
  return seed + static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15ull;
}

/// Uniform in [0, 1) with 24 bits.
LT_HD inline float to_uniform(uint32_t v) { return static_cast<float>(v >> 8) * (1.0f / 16777216.0f); }

/// Uniform in [0, 1) with 53 bits from two 32-bit values.
LT_HD inline double to_uniform(uint32_t high, uint32_t low) {
  return static_cast<double>(uint64_t{high} << 32 >> 11 | low >> 11) * (1.0 / 9007199254740992.0);
}

/// True if element `index` of dropout stream `stream` is kept, at drop probability threshold / 2^32. Elements
/// 4i to 4i+3 share one Philox call.
LT_HD inline bool dropout_keep(uint64_t seed, uint64_t stream, uint64_t index, uint32_t threshold) {
  return philox(seed, stream, index >> 2).v[index & 3] >= threshold;
}
inline uint32_t dropout_threshold(double p) {
  const double t = p * 4294967296.0;
  return t >= 4294967295.0 ? 4294967295u : static_cast<uint32_t>(t);
}

/// Standard normals for elements 2 pair and 2 pair + 1 (Box-Muller on one Philox call), in double.
struct NormalPair {
  double even, odd;
};
LT_HD inline NormalPair normal_pair(uint64_t seed, uint64_t stream, uint64_t pair) {
  const Philox4 r = philox(seed, stream, pair);
  const double u1 = (r.v[0] + 0.5) * (1.0 / 4294967296.0), u2 = (r.v[1] + 0.5) * (1.0 / 4294967296.0);
  const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 6.283185307179586 * u2;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}
LT_HD inline double normal_value(uint64_t seed, uint64_t stream, uint64_t index) {
  const NormalPair p = normal_pair(seed, stream, index >> 1);
  return (index & 1) ? p.odd : p.even;
}

}  // namespace ltrain
