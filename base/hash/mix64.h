// A 64-bit hash, for tables and pseudo-random orders.
#pragma once
#include <cstdint>

namespace ltrain {

/// A well-mixed 64-bit hash of a counter (splitmix64's finalizer).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace ltrain
