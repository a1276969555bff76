// Memory of the emulated device. As on a GPU, the host cannot touch it: it is closed but to what runs on the
// device's streams. Host code that reads or writes it ends the process, after a line that says so.
#pragma once
#include <cstdint>
#include <memory>

namespace ltrain::cuda {

std::shared_ptr<void> closed_memory(int64_t bytes);

/// All of it is open as long as one of these lives, on whatever thread.
struct OpenMemory {
  OpenMemory();
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;
};

}  // namespace ltrain::cuda
