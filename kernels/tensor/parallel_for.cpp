#include "kernels/tensor/parallel_for.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace ltrain {
namespace {
constexpr int kSlots = 12;
std::atomic<int64_t> total{0};

struct Scratch {
  void* data[kSlots] = {};
  int64_t bytes[kSlots] = {};
  ~Scratch() {
    for (int i = 0; i < kSlots; ++i) {
      std::free(data[i]);
      total -= bytes[i];
    }
  }
};
thread_local Scratch thread_slots;
}  // namespace

void* thread_scratch(int slot, int64_t bytes) {
  Scratch& s = thread_slots;
  if (s.bytes[slot] < bytes) {
    const int64_t rounded = (bytes + 4095) / 4096 * 4096;
    std::free(s.data[slot]);
    constexpr size_t kHugePage = size_t{2} << 20;
    const bool huge = rounded >= static_cast<int64_t>(kHugePage);
    if (posix_memalign(&s.data[slot], huge ? kHugePage : 64, rounded) != 0) {
      s.data[slot] = nullptr;
      throw std::bad_alloc();
    }
    if (huge) madvise(s.data[slot], rounded, MADV_HUGEPAGE);
    total += rounded - s.bytes[slot];
    s.bytes[slot] = rounded;
  }
  return s.data[slot];
}

int64_t scratch_bytes() { return total.load(); }

}  // namespace ltrain
