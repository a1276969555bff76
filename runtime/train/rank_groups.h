// The groups through which a rank of a training job communicates in its steps.
#pragma once
#include <memory>

#include "kernels/tensor/tensor.h"
#include "parallel/mesh/groups.h"
#include "runtime/launch/job.h"

namespace ltrain {

/// Collective: over shared memory, Gloo or NCCL, as the device and the hosts of the ranks ask for.
std::unique_ptr<GroupSet> make_rank_groups(const Mesh& mesh, Job& job, DeviceKind device,
                                           GroupSet::Options options);

}  // namespace ltrain
