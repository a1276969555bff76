// Selects the device of a rank and binds its thread to nearby cores.
#pragma once
#include <string>

#include "kernels/tensor/tensor.h"

namespace ltrain {

/// Makes the calling thread use the device of local rank `local_rank`. GPUs joined by fast links go to
/// neighbouring ranks (device_order). The thread is bound to the cores near its GPU unless
/// LTRAIN_CPU_AFFINITY=off. Call it before other threads and streams are created. Returns a description for
/// the log, "GPU 0000:17:00.0, cores 0-55 of NUMA node 0", or an empty string on the CPU. `root`: prefix of
/// /sys, for tests.
std::string take_device(DeviceKind device, int local_rank, const std::string& root = "");

}  // namespace ltrain
