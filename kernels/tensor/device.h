// Device of a rank: streams, memory, and host memory for copies. Code above this header does not know which
// device it is, or if the build supports it.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/tensor/stream.h"
#include "kernels/tensor/tensor.h"

namespace ltrain {

std::string_view device_name(DeviceKind device);  ///< name in recipes: "cpu", "cuda"

/// Empty if steps can run on `device` in this build and on this machine, else the name of the missing part.
/// Checks the driver and the libraries, and takes no GPU memory.
std::string missing_for(DeviceKind device);
/// Devices that this process may use; 1 for the CPU, 0 if something is missing.
int device_count(DeviceKind device);
/// PCI bus id of each device ("0000:17:00.0"); empty for the CPU, and if unknown.
std::vector<std::string> device_places(DeviceKind device);
/// [a][b]: devices a and b are linked directly (NVLink), according to the driver.
std::vector<std::vector<bool>> device_links(DeviceKind device);
/// Makes the calling thread, and streams that it creates from now on, use device `index` of its kind.
void use_device(DeviceKind device, int index);

struct DeviceInfo {
  std::string name;                      ///< "NVIDIA H200"
  int64_t total_bytes = 0;               ///< memory of the device
  std::array<int64_t, 2> identity = {};  ///< same value for the same card in every process
  int capability = 0;                    ///< compute capability of a GPU: 90 for sm_90
};
/// Device that this thread uses. The CPU has no name and 0 bytes.
DeviceInfo device_info(DeviceKind device);
/// Newest CUDA version that the GPU driver supports: 12090 for 12.9; 0 for the CPU.
int driver_version(DeviceKind device);
/// Unallocated bytes of the device; 0 for the CPU.
int64_t free_device_bytes(DeviceKind device);

/// Stream for compute; inline on the CPU.
std::unique_ptr<Stream> make_compute_stream(DeviceKind device, std::string name);
/// Stream for communication and copies; a worker thread on the CPU.
std::unique_ptr<Stream> make_side_stream(DeviceKind device, std::string name);

/// Device memory for tensors, aligned to at least 64 bytes. Throws Error with the free bytes.
std::shared_ptr<void> device_memory(DeviceKind device, int64_t bytes);
/// Host memory for full-speed copies to and from `device`: pinned for a GPU.
std::shared_ptr<void> host_memory(DeviceKind device, int64_t bytes);

/// Bytes outside the arenas for each stream that runs kernels: partial sums and matmul workspaces.
int64_t stream_scratch_bytes(DeviceKind device);

}  // namespace ltrain
