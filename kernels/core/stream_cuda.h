// Streams of the CUDA device.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/stream.h"

namespace ltrain::cuda {

/// Device memory that each stream owns for partial sums and matmul workspaces. 32 MiB: what cuBLASLt asks for
/// on Hopper.
constexpr int64_t kScratchBytes = 32 << 20;

/// Empty where there is a device that this build has kernels for, else why there is none.
std::string no_device_reason();
/// Memory of the device; freed with the last reference.
std::shared_ptr<void> device_memory(int64_t bytes);

/// Throws Error when there is no driver or no device, with what the CUDA library says.
std::unique_ptr<Stream> make_cuda_stream(std::string name);

/// The stream's scratch; the next kernel that asks for it gets the same memory.
void* scratch(Stream& s, int64_t bytes);
/// To zero.
void fill_bytes(Stream& s, void* to, int64_t bytes);

}  // namespace ltrain::cuda
