// Memory of the emulated device. As on a GPU, the host cannot access it: only work on the device's streams
// can. Host code that reads or writes it ends the process with a message.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace ltrain::cuda {

std::shared_ptr<void> closed_memory(int64_t bytes);

struct ClosedMemory {
  char* begin;
  size_t bytes;
};
/// Regions currently allocated.
std::vector<ClosedMemory> closed_memories();

/// All regions are accessible while an object lives, on any thread.
struct OpenMemory {
  OpenMemory();
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;
};

}  // namespace ltrain::cuda
