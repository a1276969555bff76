// Selects the device of a rank and binds its thread to nearby cores.
#pragma once
#include <string>

#include "kernels/tensor/tensor.h"

namespace ltrain {

struct TakenDevice {
  std::string text;    ///< "GPU 0000:17:00.0, cores 0-55 of NUMA node 0"; empty on the CPU
  std::string bus_id;  ///< PCI bus id as the driver writes it; empty on the CPU, and if unknown
};

/// Makes the calling thread use the device of local rank `local_rank`. GPUs joined by fast links go to
/// neighbouring ranks (device_order). The thread is bound to the cores near its GPU unless
/// LTRAIN_CPU_AFFINITY=off. Call it before other threads and streams are created. `root`: prefix of /sys, for
/// tests.
TakenDevice take_device(DeviceKind device, int local_rank, const std::string& root = "");

}  // namespace ltrain
