// Streams and memory of the CUDA device: device_cuda.cpp, emulated_stream_cuda.cpp in tests without a GPU,
// cuda_stub.cpp in builds without CUDA. Code above kernels/ uses device.h.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/tensor/device.h"
#include "kernels/tensor/stream.h"

namespace ltrain::cuda {

/// Device memory of each stream with kernels, for partial sums and matmul workspaces; allocated on first use.
/// cuBLASLt asks for 32 MiB on Hopper.
constexpr int64_t kScratchBytes = 32 << 20;

/// Empty if there is a device with kernels in this build, and the libraries that it needs; else the reason.
std::string no_device_reason();
/// Devices that the driver shows to this process. Throws without a driver.
int device_count();
std::vector<std::string> device_places();       ///< PCI bus ids
std::vector<std::vector<bool>> device_links();  ///< NVLink according to NVML; none without NVML
/// Device of the calling thread.
void use_device(int index);
int used_device();
DeviceInfo device_info();
int driver_version();
int64_t free_device_bytes();

/// Device memory, freed with the last reference. If there is not enough, the error says who holds it.
std::shared_ptr<void> device_memory(int64_t bytes);
/// Pinned host memory, for asynchronous copies.
std::shared_ptr<void> pinned_memory(int64_t bytes);

/// Throws Error if there is no driver or no device, with the CUDA library's message.
std::unique_ptr<Stream> make_cuda_stream(std::string name);

/// Scratch of the stream. The next kernel that asks for it gets the same memory.
void* scratch(Stream& s, int64_t bytes);
/// Fills with zeros.
void fill_bytes(Stream& s, void* to, int64_t bytes);

}  // namespace ltrain::cuda
