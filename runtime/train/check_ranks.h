// Devices and nodes that the ranks of one job may have together. Every function is collective, and throws
// Error (usage). `stream`: of the CPU.
#pragma once
#include <optional>

#include "base/error.h"
#include "kernels/tensor/device.h"
#include "parallel/comm/communicator.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Refuses ranks on different kinds of devices, and two ranks with one GPU unless `shared`. `card`: this
/// rank's.
void check_devices(DeviceKind device, const DeviceInfo& card, bool shared, Communicator& group,
                   Stream& stream);

/// Refuses nodes with different numbers of ranks if shard groups follow nodes, because each rank derives its
/// shard group from its own node.
void check_nodes(const Parallel& parallel, Communicator& group, Stream& stream);

/// Throws the error of a rank whose work beside training failed, on all ranks: on the others as their loss of
/// that one, so that the job's verdict and exit code are those of the error. Nothing failed: returns.
void throw_work_error(const std::optional<Error>& mine, Communicator& group, Stream& stream);

}  // namespace ltrain
