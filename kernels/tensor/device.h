// What a device gives to a rank: streams, memory, and the host memory that copies go through. Above this
// nobody asks which device it is, or whether the build has it.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/tensor/stream.h"
#include "kernels/tensor/tensor.h"

namespace ltrain {

std::string_view device_name(DeviceKind device);  ///< as in recipes: "cpu", "cuda"

/// Empty where steps can run on `device` in this build and on this machine; else what is missing, by name.
/// Looks at the driver and the libraries, and takes no memory of a GPU.
std::string missing_for(DeviceKind device);
/// That this process sees and may use; 1 for the CPU, 0 where something is missing.
int device_count(DeviceKind device);
/// Of each: where it sits on the host's bus ("0000:17:00.0"); empty for the CPU, and where nobody says.
std::vector<std::string> device_places(DeviceKind device);
/// [a][b]: devices a and b reach each other by links of their own (NVLink), where the driver says.
std::vector<std::vector<bool>> device_links(DeviceKind device);
/// The calling thread and streams that it makes from now on use device `index` of its kind.
void use_device(DeviceKind device, int index);

struct DeviceInfo {
  std::string name;                      ///< "NVIDIA H200"
  int64_t total_bytes = 0;               ///< of its memory
  std::array<int64_t, 2> identity = {};  ///< the same for the same card, whoever sees it
  int capability = 0;                    ///< of a GPU: 90 for sm_90
};
/// Of the device that this thread uses; the CPU has no name and no bytes.
DeviceInfo device_info(DeviceKind device);
/// Of a GPU's driver: the newest CUDA that it is for, 12090 for 12.9; 0 for the CPU.
int driver_version(DeviceKind device);
/// Of its memory, that nobody has now; 0 for the CPU.
int64_t free_device_bytes(DeviceKind device);

/// For compute: inline on the CPU.
std::unique_ptr<Stream> make_compute_stream(DeviceKind device, std::string name);
/// For communication and copies: a worker on the CPU.
std::unique_ptr<Stream> make_side_stream(DeviceKind device, std::string name);

/// Memory of the device that a tensor can lie in, 64-byte aligned at least. Throws Error with what is free.
std::shared_ptr<void> device_memory(DeviceKind device, int64_t bytes);
/// Host memory that copies to and from `device` go through at full speed: pinned for a GPU.
std::shared_ptr<void> host_memory(DeviceKind device, int64_t bytes);

/// Outside of the arenas, for each stream that kernels run on: partial sums and workspaces of matmuls.
int64_t stream_scratch_bytes(DeviceKind device);

}  // namespace ltrain
