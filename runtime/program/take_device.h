// Which device of its host a rank takes, and which cores it runs on then.
#pragma once
#include <string>

#include "kernels/tensor/tensor.h"

namespace ltrain {

/// The calling thread uses the device of local rank `local_rank`: on a GPU those that links join go to
/// neighbouring ranks (device_order), and the thread is bound to the cores near the card;
/// LTRAIN_CPU_AFFINITY=off leaves it where it was. Before other threads and streams are made. Returns what
/// the run's first lines tell of it, empty for the CPU: "GPU 0000:17:00.0, cores 0-55 of NUMA node 0".
/// `root`: what /sys is below, for tests.
std::string take_device(DeviceKind device, int local_rank, const std::string& root = "");

}  // namespace ltrain
