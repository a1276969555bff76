// Coordinates, host and device of each rank.
#pragma once
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "runtime/launch/environment/environment.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct MappedRank {
  Mesh mesh;  ///< coordinates of the rank
  int node = 0, local_rank = 0;
  std::string host, device;
};

/// Number of nodes spanned by the groups of one axis.
struct AxisSpan {
  Axis axis = Axis::data;
  int size = 1, groups = 1;
  int most_nodes = 1;
};

struct RankMap {
  std::string order;  ///< parallel.order
  int ranks_per_node = 1;
  std::vector<MappedRank> ranks;
  std::vector<AxisSpan> axes;      ///< axes larger than 1, innermost first
  std::vector<std::string> notes;  ///< groups on slower links than necessary, and advice
};

/// Launch environment from the variables. A single rank if the variables contradict each other, because a
/// plan needs no launcher; `ltrain run` refuses such variables and `ltrain doctor` reports them.
LaunchEnvironment environment_for_plans(const Variables& variables);
/// Host of each node: Slurm's names if it lists as many, else this host for a single node, else "node 0" ....
std::vector<std::string> host_names(int nodes, const Variables& variables, bool here = true);
/// Maps the ranks of a resolved recipe. Node n has launch.ranks_on_host ranks from n * launch.ranks_on_host
/// on.
RankMap map_ranks(const Recipe& recipe, const std::vector<std::string>& hosts);
/// Ranks per node for `ltrain plan` and `ltrain doctor`: launch.ranks_per_node, else from the environment's
/// nodes, else all.
int ranks_per_node(const Recipe& recipe, int world, const LaunchEnvironment& environment);

/// Table of ranks. Above `most` ranks only the first are listed, and `rest` says where the others are.
std::string rank_map_text(const RankMap& map, size_t most = 16, const char* rest = "--json has all");
std::string rank_map_json(const RankMap& map);

}  // namespace ltrain
