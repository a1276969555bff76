#include "kernels/tensor/parallel_for.h"

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
    s.data[slot] = std::aligned_alloc(64, rounded);
    if (!s.data[slot]) throw std::bad_alloc();
    total += rounded - s.bytes[slot];
    s.bytes[slot] = rounded;
  }
  return s.data[slot];
}

int64_t scratch_bytes() { return total.load(); }

}  // namespace ltrain
