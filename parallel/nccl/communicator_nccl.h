// Collectives between GPUs, on NCCL.
//
// One communicator of all ranks, from which groups are split in one order, each with channels and buffers of
// its own. Calls are enqueued and return, but for the first between ranks, which connects them; the world
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
  double timeout_seconds = 600;         ///< the longest that a call may block, or stay enqueued
  double connect_timeout_seconds = 60;  ///< for building the world and each group
  /// Each call waits for its stream on the host: with several ranks on one GPU a kernel that waits for
  /// another rank could keep that rank's kernels from running.
  bool wait_before_calls = false;
};

class NcclWorld;
/// Collective over all ranks of the job, each with its own GPU chosen before. `key` is no other's in the
/// store.
std::shared_ptr<NcclWorld> make_nccl_world(std::shared_ptr<nccl::Library> library, KeyValueStore& store,
                                           const std::string& key, int rank, int size,
                                           const NcclOptions& options = {});

/// This rank has failed elsewhere: what is enqueued, here and then on the others, ends.
void abort_nccl_world(NcclWorld& world, const std::string& why);

/// Channels that a group has at most, each a block of the GPU and buffers; 0: as many as NCCL chooses.
int most_nccl_channels(GroupMessages messages);

/// Collective over the world: every rank calls it for the same groups in the same order, also those that are
/// in none of them (`ranks` empty; gives null) and those that are alone in theirs. `ranks`: world ranks of
/// this rank's group, in the order of the group.
std::unique_ptr<Communicator> make_nccl_group(std::shared_ptr<NcclWorld> world, const std::vector<int>& ranks,
                                              std::string name, AxisSet axes,
                                              GroupMessages messages = GroupMessages::tensors);

}  // namespace ltrain
