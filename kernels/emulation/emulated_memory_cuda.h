// Memory of the emulated device. As on a GPU, the host cannot touch it: it is closed but to what runs on the
// device's streams. Host code that reads or writes it ends the process, after a line that says so.
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
/// What there is of it now.
std::vector<ClosedMemory> closed_memories();

/// All of it is open as long as one of these lives, on whatever thread.
struct OpenMemory {
  OpenMemory();
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;
};

}  // namespace ltrain::cuda
