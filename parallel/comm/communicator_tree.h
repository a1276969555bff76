// Collectives of few bytes between many ranks, over a tree of TCP connections: every rank to the first rank
// of its host, and the first rank of every host to rank 0. A group of N ranks on H hosts has N - 1
// connections, H - 1 of them between hosts. A full mesh would have N (N - 1) / 2.
//
// Everything goes up to rank 0, which compares, sums in ascending rank order like every implementation, and
// sends the result down. All of a call's data passes rank 0: for checkpoints and agreements, not for tensors.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/key_value_store.h"
#include "parallel/comm/peer_listener.h"

namespace ltrain {

struct TreeOptions {
  double timeout_seconds = 600;         ///< longest wait of a call for another rank's next byte
  double connect_timeout_seconds = 60;  ///< wait for the others when the group is built
  double reach_seconds = 60;            ///< wait for an answer of a rank that is there
};

/// Collective over the group: all `size` ranks call it with the same store, the same `hosts` and the same
/// `key`, which no other group of the job uses. `hosts`: a host number for each rank. Such a group has no
/// all_to_all, no transfers between two ranks, and no split.
std::unique_ptr<Communicator> make_tree_group(std::shared_ptr<PeerListener> listener,
                                              std::shared_ptr<KeyValueStore> store, const std::string& key,
                                              int rank, int size, const std::vector<int>& hosts,
                                              std::string name, AxisSet axes,
                                              const TreeOptions& options = {});

/// Neighbours of `rank` in the tree: the one above (-1 for rank 0), and those below, ascending.
struct TreePlace {
  int above = -1;
  std::vector<int> below;
};
TreePlace tree_place(int rank, const std::vector<int>& hosts);

}  // namespace ltrain
