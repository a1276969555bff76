// Collectives between processes of one host, through memory that they share.
//
// A rank copies what others need into its slots of the group's segment and reads theirs; sums are made
// straight from the slots, in ascending rank order, so that they equal those of every other implementation
// bit for bit. Waiting spins for a few microseconds and then sleeps. A rank that dies, leaves or gives up
// ends the others' waits at once. The segment has no name in any file system: nothing is left behind, however
// a rank ends.
#pragma once
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"
#include "parallel/comm/key_value_store.h"

namespace ltrain {

struct ShmOptions {
  double timeout_seconds = 600;         ///< the longest that one call waits for another rank
  double connect_timeout_seconds = 60;  ///< for building the group
  int64_t slot_bytes = 64 << 10;        ///< of each of a rank's slots for collectives; a multiple of 4096
  int64_t transfer_bytes = 32 << 10;    ///< of each of a rank's slots for send; a multiple of 4096
  double spin_seconds = -1;             ///< before a wait sleeps; -1: by the number of cores
};

/// The most ranks that a group can have.
int shm_max_ranks();
/// Size of the memory that the ranks of one group share: exactly what is mapped, once on each rank.
int64_t shm_segment_bytes(int size, const ShmOptions& options = {});
/// Why this process cannot have such groups; empty when it can.
std::string shm_unavailable();

/// Collective over the group, whose ranks are all on this host: all `size` ranks call it with the same store,
/// the same options and the same `key`, which no other group of the job uses.
std::unique_ptr<Communicator> make_shm_group(std::shared_ptr<KeyValueStore> store, const std::string& key,
                                             int rank, int size, std::string name, AxisSet axes,
                                             const ShmOptions& options = {});

}  // namespace ltrain
