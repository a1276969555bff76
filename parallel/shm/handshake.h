// Set-up of a group's shared memory on one host, and detection of a rank's end.
//
// Rank 0 listens on an abstract unix socket; its name and two random secrets are in the job's store. A rank
// shows the first secret, rank 0 answers with the second, and both check the other's user id. No byte of a
// peer is trusted before. Each rank keeps the writing end of a pipe, and all others get its reading end: when
// the rank closes its end or dies, they read a hang-up. Nothing of this has a name in a file system.
#pragma once
#include <string>
#include <vector>

#include "base/fd.h"
#include "parallel/comm/key_value_store.h"
#include "parallel/shm/segment.h"

namespace ltrain::shm {

struct Membership {
  Fd memory;
  Fd own_life;                  ///< open while this rank takes part
  std::vector<Fd> others_life;  ///< for each rank, own entry empty: hangs up when that rank is gone
};

/// Collective over the group. Throws Error (rank_lost) if some rank is missing after `timeout_seconds`.
Membership meet(KeyValueStore& store, const std::string& key, const std::string& group, int rank,
                const Layout& layout, double timeout_seconds);

}  // namespace ltrain::shm
