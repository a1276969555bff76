// Collectives of few bytes between many ranks, over a tree of TCP connections: every rank to the first of its
// host, and of every host the first to rank 0. A group of N ranks on H hosts has N - 1 connections, H - 1 of
// them between hosts, where one in which each rank is connected with each has N (N - 1) / 2.
//
// Everything goes up to rank 0, which compares, sums in ascending rank order as every implementation does,
// and sends the result down. So all of a call's data passes rank 0: for checkpoints and agreements, not for
// tensors.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/key_value_store.h"
#include "parallel/comm/peer_listener.h"

namespace ltrain {

struct TreeOptions {
  double timeout_seconds = 600;         ///< the longest that a call waits for another rank's next byte
  double connect_timeout_seconds = 60;  ///< until the others come to build the group
  double reach_seconds = 60;            ///< until one that is there answers
};

/// Collective over the group: all `size` ranks call it with the same store, the same `hosts` and the same
/// `key`, which no other group of the job uses. `hosts`: of each rank, a number that those on one host share.
/// Such a group has no all_to_all, nothing between two ranks, and is not split.
std::unique_ptr<Communicator> make_tree_group(std::shared_ptr<PeerListener> listener,
                                              std::shared_ptr<KeyValueStore> store, const std::string& key,
                                              int rank, int size, const std::vector<int>& hosts,
                                              std::string name, AxisSet axes,
                                              const TreeOptions& options = {});

/// The ranks that `rank` is connected with: the one above it (-1: it is rank 0), and those below, ascending.
struct TreePlace {
  int above = -1;
  std::vector<int> below;
};
TreePlace tree_place(int rank, const std::vector<int>& hosts);

}  // namespace ltrain
