// ltrain bench --links: rates of the links between the ranks of a job.
#pragma once
#include <string>

#include "kernels/tensor/tensor.h"

namespace ltrain::app {

/// Runs on each rank of a job that srun, torchrun or mpirun started; rank 0 prints, and writes the links to
/// the file `output` if it has a name. Throws Error (usage) for a process without such a job.
void bench_links(DeviceKind device, const std::string& output, bool json);

}  // namespace ltrain::app
