// Collectives between GPUs, on NCCL.
//
// One communicator has all ranks, and groups are split from it in one order, each with its own channels and
// buffers. Calls are enqueued and return, except the first between ranks, which connects them; the world
// watches them (nccl_world.h). Sums are in NCCL's order, not by rank: layouts agree to rounding, not bit for
// bit.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/key_value_store.h"
#include "parallel/nccl/library.h"

namespace ltrain {

struct NcclOptions {
  double timeout_seconds = 600;         ///< longest time for a call to block, or to stay enqueued
  double connect_timeout_seconds = 60;  ///< for building the world and each group
  /// True makes each call wait for its stream on the host: with several ranks on one GPU, a kernel that waits
  /// for another rank could keep that rank's kernels from running.
  bool wait_before_calls = false;
};

class NcclWorld;
/// Collective over all ranks of the job, each with its GPU already chosen. `key` must be unique in the store.
std::shared_ptr<NcclWorld> make_nccl_world(std::shared_ptr<nccl::Library> library, KeyValueStore& store,
                                           const std::string& key, int rank, int size,
                                           const NcclOptions& options = {});

/// Reports a failure of this rank elsewhere: enqueued calls end, here and then on the others.
void abort_nccl_world(NcclWorld& world, const std::string& why);

/// Most channels of a group, each a block of the GPU and buffers; 0: NCCL chooses.
int most_nccl_channels(GroupMessages messages);

/// Collective over the world: every rank calls it for the same groups in the same order, also ranks outside
/// all of them (`ranks` empty; returns null) and ranks alone in theirs. `ranks`: world ranks of this rank's
/// group, in the order of the group.
std::unique_ptr<Communicator> make_nccl_group(std::shared_ptr<NcclWorld> world, const std::vector<int>& ranks,
                                              std::string name, AxisSet axes,
                                              GroupMessages messages = GroupMessages::tensors);

}  // namespace ltrain
