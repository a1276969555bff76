// How the ranks of a group on one host get their shared memory, and learn of each other's end.
//
// Rank 0 listens on an abstract unix socket, whose name and two random secrets it leaves in the job's store.
// A rank shows the first secret, rank 0 answers with the second; both look at the other's user id. No byte of
// a peer is believed before. Each rank keeps the writing end of a pipe whose reading end all others get: when
// it closes its end or dies, however it dies, they read a hang-up. Nothing of this has a name in a file
// system.
#pragma once
#include <string>
#include <vector>

#include "base/fd.h"
#include "parallel/comm/key_value_store.h"
#include "parallel/shm/segment.h"

namespace ltrain::shm {

struct Membership {
  Fd memory;
  Fd own_life;                  ///< open for as long as this rank takes part
  std::vector<Fd> others_life;  ///< by rank, own empty: hangs up when that rank is gone
};

/// Collective over the group. Throws Error (rank_lost) when not all ranks are there within `timeout_seconds`.
Membership meet(KeyValueStore& store, const std::string& key, const std::string& group, int rank,
                const Layout& layout, double timeout_seconds);

}  // namespace ltrain::shm
