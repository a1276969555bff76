#include "tests/cuda_traffic/accesses.h"

#include <atomic>
#include <catch2/catch.hpp>

#include "kernels/emulation/emulated_memory_cuda.h"
#include "kernels/tensor/stream_cuda.h"

namespace ltrain::test {
namespace {

constexpr uint8_t kLoaded = 1, kStored = 2;

struct Region {
  uintptr_t begin, end;
  std::vector<uint8_t> seen;  ///< operands, and how each byte was accessed
};

/// The op that is counted. Its kernels run on one thread, the stream's.
struct Count {
  std::vector<Region> regions;
  Bytes bytes;
};
std::atomic<Count*> counting{nullptr};

void count(const volatile void* at, int64_t size, bool stored) {
  Count* const c = counting.load(std::memory_order_relaxed);
  if (!c) return;
  const uintptr_t first = reinterpret_cast<uintptr_t>(at);
  for (Region& r : c->regions) {
    if (first < r.begin || first >= r.end) continue;
    if (r.seen.empty()) {
      c->bytes.scratch += size;
      return;
    }
    const uint8_t mark = stored ? kStored : kLoaded;
    for (uintptr_t i = first - r.begin; i < first - r.begin + static_cast<uintptr_t>(size); ++i) {
      ++(r.seen[i] & mark ? c->bytes.repeated : c->bytes.once);
      r.seen[i] |= mark;
    }
    return;
  }
}

void count_copy(const void* at, int64_t size, bool stored) { count(at, size, stored); }

}  // namespace

Bytes count_bytes(OnDevice& device, const std::function<void(Stream&)>& op) {
  // Once before: memory of the stream is there then, and kernels that are tried at their first use were.
  cuda::scratch(device.stream(), 1);
  device.run(op);
  Count c;
  for (const cuda::ClosedMemory& m : cuda::closed_memories()) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(m.begin);
    c.regions.push_back({begin, begin + m.bytes, {}});
    for (const auto& operand : device.memory())
      if (operand.get() == m.begin) c.regions.back().seen.resize(m.bytes);
  }
  counting = &c;
  cuda::emulated_on_copy = count_copy;
  device.run(op);
  cuda::emulated_on_copy = nullptr;
  counting = nullptr;
  return c.bytes;
}

void check_bytes(const Made& made, const Expected& expected) {
  OnDevice device;
  OnMeta meta;
  const auto on_device = made(device), on_meta = made(meta);
  const Bytes moved = count_bytes(device, on_device);
  if (expected.planned) CHECK(meta.bytes(on_meta) == expected.floor);
  CHECK(moved.once - expected.floor == expected.unpriced);
  CHECK(moved.repeated >= expected.repeated);
  CHECK(moved.repeated <= expected.repeated + expected.more);
  CHECK(moved.scratch == expected.scratch);
}

}  // namespace ltrain::test

// Functions that instrumented code calls; the tools' own library is not linked. NOLINTBEGIN
extern "C" {
using ltrain::test::count;

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, unsigned long n) { count(p, static_cast<int64_t>(n), false); }
void __tsan_write_range(void* p, unsigned long n) { count(p, static_cast<int64_t>(n), true); }
#define LT_COUNT(n)                                              \
  void __tsan_read##n(void* p) { count(p, n, false); }           \
  void __tsan_write##n(void* p) { count(p, n, true); }           \
  void __tsan_unaligned_read##n(void* p) { count(p, n, false); } \
  void __tsan_unaligned_write##n(void* p) { count(p, n, true); }
LT_COUNT(1)
LT_COUNT(2)
LT_COUNT(4)
LT_COUNT(8)
LT_COUNT(16)
#undef LT_COUNT
// Accesses of host code in the same sources.
unsigned char __tsan_atomic8_load(const volatile unsigned char* p, int) {
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
long __tsan_atomic64_fetch_add(volatile long* p, long v, int) {
  return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
}
// NOLINTEND
