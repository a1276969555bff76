// Collectives between processes of one host, through shared memory.
//
// A rank copies data for others into its slots of the group's segment and reads their slots. Sums are
// computed directly from the slots, in ascending rank order, so that they equal those of every other
// implementation bit for bit. A wait spins for some microseconds and then sleeps. If a rank dies, leaves or
// gives up, the others' waits end at once. The segment has no name in any file system, so that nothing is
// left behind.
#pragma once
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"
#include "parallel/comm/key_value_store.h"

namespace ltrain {

struct ShmOptions {
  double timeout_seconds = 600;         ///< longest wait of one call for another rank
  double connect_timeout_seconds = 60;  ///< for building the group
  int64_t slot_bytes = 64 << 10;      ///< size of each of a rank's slots for collectives; a multiple of 4096
  int64_t transfer_bytes = 32 << 10;  ///< size of each of a rank's slots for send; a multiple of 4096
  double spin_seconds = -1;           ///< spin time before a wait sleeps; -1: depends on the number of cores
};

/// Most ranks of a group.
int shm_max_ranks();
/// Size of the memory that the ranks of one group share: the exact mapping, once on each rank.
int64_t shm_segment_bytes(int size, const ShmOptions& options = {});
/// Reason why this process cannot have such groups; empty if it can.
std::string shm_unavailable();

/// Collective over the group, with all ranks on this host: all `size` ranks call it with the same store, the
/// same options and the same `key`, which no other group of the job uses.
std::unique_ptr<Communicator> make_shm_group(std::shared_ptr<KeyValueStore> store, const std::string& key,
                                             int rank, int size, std::string name, AxisSet axes,
                                             const ShmOptions& options = {});

}  // namespace ltrain
