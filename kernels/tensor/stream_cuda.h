// Streams and memory of the CUDA device: device_cuda.cpp, emulated_stream_cuda.cpp in tests without a GPU,
// cuda_stub.cpp in builds without CUDA. What is above kernels/ asks device.h.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/tensor/device.h"
#include "kernels/tensor/stream.h"

namespace ltrain::cuda {

/// Device memory that each stream with kernels owns, for partial sums and matmul workspaces: made when first
/// asked for. 32 MiB: what cuBLASLt asks for on Hopper.
constexpr int64_t kScratchBytes = 32 << 20;

/// Empty where there is a device that this build has kernels for, and the libraries that it needs; else why
/// not.
std::string no_device_reason();
/// That the driver shows to this process; fails where there is no driver.
int device_count();
std::vector<std::string> device_places();       ///< PCI bus ids
std::vector<std::vector<bool>> device_links();  ///< NVLink, as NVML says; without it none
/// For the calling thread.
void use_device(int index);
int used_device();
DeviceInfo device_info();
int driver_version();
int64_t free_device_bytes();

/// Memory of the device; freed with the last reference. Where there is not enough, the error says who has it.
std::shared_ptr<void> device_memory(int64_t bytes);
/// Host memory that the device copies from and to by itself.
std::shared_ptr<void> pinned_memory(int64_t bytes);

/// Throws Error when there is no driver or no device, with what the CUDA library says.
std::unique_ptr<Stream> make_cuda_stream(std::string name);

/// The stream's scratch; the next kernel that asks for it gets the same memory.
void* scratch(Stream& s, int64_t bytes);
/// To zero.
void fill_bytes(Stream& s, void* to, int64_t bytes);

}  // namespace ltrain::cuda
