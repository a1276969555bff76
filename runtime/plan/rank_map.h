// Which rank has which coordinates, on which host and device.
#pragma once
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "runtime/launch/environment.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct MappedRank {
  Mesh mesh;  ///< of the rank
  int node = 0, local_rank = 0;
  std::string host, device;
};

/// Nodes that one axis's groups span.
struct AxisSpan {
  Axis axis = Axis::data;
  int size = 1, groups = 1;
  int most_nodes = 1;
};

struct RankMap {
  std::string order;  ///< parallel.order
  int ranks_per_node = 1;
  std::vector<MappedRank> ranks;
  std::vector<AxisSpan> axes;      ///< larger than 1, innermost first
  std::vector<std::string> notes;  ///< groups on slower links than need be, and what would help
};

/// What the variables describe; a rank alone where they contradict each other, which `ltrain run` refuses and
/// `ltrain doctor` names: a plan needs no launcher.
LaunchEnvironment environment_for_plans(const Variables& variables);
/// Hosts by node: what Slurm names when it names as many, else this host for one node, else "node 0" ....
std::vector<std::string> host_names(int nodes, const Variables& variables, bool here = true);
/// `recipe` is resolved. Node n has ranks n * launch.ranks_on_host and the following.
RankMap map_ranks(const Recipe& recipe, const std::vector<std::string>& hosts);
/// The ranks per node of `ltrain plan` and `ltrain doctor`: launch.ranks_per_node, else what the
/// environment's nodes make, else all.
int ranks_per_node(const Recipe& recipe, int world, const LaunchEnvironment& environment);

/// A table. More than `most` ranks: the first ones, and `rest` says where the others are.
std::string rank_map_text(const RankMap& map, size_t most = 16, const char* rest = "--json has all");
std::string rank_map_json(const RankMap& map);

}  // namespace ltrain
