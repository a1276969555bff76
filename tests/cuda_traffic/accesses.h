// Every access of a kernel to the device's memory, by address. The kernels' sources are compiled for this
// test with GCC's and Clang's instrumentation for ThreadSanitizer, whose calls accesses.cpp takes: each load
// and store that the optimiser leaves says where it is and how wide. What asynchronous and bulk copies move,
// the emulated device says (emulated_on_copy).
#pragma once
#include "tests/cuda/operands.h"

namespace ltrain::test {

/// Bytes that an op moves. A card's memory has to move `once`, at least; `repeated` comes from the caches
/// where these hold what is between.
struct Bytes {
  int64_t once = 0;      ///< distinct bytes of operands that are loaded, and that are stored
  int64_t repeated = 0;  ///< repeated accesses to operands
  int64_t scratch = 0;   ///< all accesses to the stream's own memory
};
Bytes count_bytes(OnDevice& device, const std::function<void(Stream&)>& op);

/// Expected bytes of an op.
struct Expected {
  int64_t floor = 0;     ///< bytes that the plan prices
  int64_t unpriced = 0;  ///< bytes of small operands that the plan leaves out
  int64_t repeated = 0;  ///< Bytes::repeated
  int64_t scratch = 0;   ///< Bytes::scratch
  int64_t more = 0;      ///< `repeated` may be larger, where it depends on the values
  bool planned = true;   ///< false: no plan has the op
};
void check_bytes(const Made& made, const Expected& expected);

}  // namespace ltrain::test
