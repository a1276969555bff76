// Order of a job's ranks by the distance of their hosts. The inner axes of the mesh join neighbouring ranks,
// so neighbours should have few switches between them (docs/launch.md).
#pragma once
#include <string>
#include <vector>

#include "runtime/launch/environment/environment.h"

namespace ltrain {

struct RankLocation {
  std::string host;
  std::string switches;  ///< above the host, outermost first: "spine1.leaf3"; empty: unknown
};

/// Ranks in their new order: element i is the launcher's number of the rank that becomes rank i. Ranks of one
/// host follow each other, and so do hosts below one switch, level by level. Switches, hosts and ranks keep
/// the launcher's order otherwise, so rank 0 stays rank 0. `parts`: equal ranges
/// of ranks; a rank stays in its range.
std::vector<int> order_by_distance(const std::vector<RankLocation>& ranks, int parts = 1);

/// Number of levels of the network between two ranks: 0 on one host, 1 below one innermost switch, and one
/// more for each level above it. Hosts of unknown switches are at level 1.
int levels_between(const RankLocation& a, const RankLocation& b);

/// Switches above this host: LTRAIN_TOPOLOGY, else those of SLURM_TOPOLOGY_ADDR. Throws Error (usage) for an
/// LTRAIN_TOPOLOGY with an empty name.
std::string switches_above(const Variables& variables);

/// One line on a new order, for the log: the switches with their hosts and the number of ranks that moved.
std::string describe_order(const std::vector<RankLocation>& ranks, const std::vector<int>& order);

}  // namespace ltrain
