// ltrain bench --links: rates of the links between the ranks of a job.
#pragma once
#include "kernels/tensor/tensor.h"

namespace ltrain::app {

/// Runs on each rank of a job that srun, torchrun or mpirun started; rank 0 prints. Throws Error (usage) for
/// a process without such a job.
void bench_links(DeviceKind device, bool json);

}  // namespace ltrain::app
