#include "runtime/plan/rank_map.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "base/json/json.h"
#include "parallel/comm/socket.h"
#include "runtime/launch/environment/hostlist.h"
#include "runtime/plan/make_plan.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {

LaunchEnvironment environment_for_plans(const Variables& variables) {
  try {
    return detect_environment(variables);
  } catch (const Error&) {
    return {};
  }
}

std::vector<std::string> host_names(int nodes, const Variables& variables, bool here) {
  if (auto it = variables.find("SLURM_JOB_NODELIST"); it != variables.end()) {
    std::vector<std::string> names;
    try {
      names = parse_hostlist(it->second, "SLURM_JOB_NODELIST");
    } catch (const Error&) {  // `ltrain doctor` reports it
    }
    if (static_cast<int>(names.size()) == nodes) return names;
  }
  if (nodes == 1 && here) return {host_name()};
  std::vector<std::string> names;
  for (int n = 0; n < nodes; ++n) names.push_back(fmt::format("node {}", n));
  return names;
}

int ranks_per_node(const Recipe& recipe, int world, const LaunchEnvironment& e) {
  if (recipe.launch.ranks_per_node > 0) return static_cast<int>(recipe.launch.ranks_per_node);
  if (e.kind == LaunchEnvironment::Kind::rank && e.world_size == world) return std::max(1, e.local_size);
  if (e.kind == LaunchEnvironment::Kind::node && world % e.nodes == 0) return world / e.nodes;
  return world;
}

AssumedNode assumed_node(const MachineProfile& profile, int world, int gpus) {
  if (profile.cards_per_node == 0 || world <= profile.cards_per_node) return {};
  if (profile.of_this_machine && world <= gpus) return {};
  std::string card = profile.card;
  for (char& c : card) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return {profile.cards_per_node, card, profile.node_source};
}

RankMap map_ranks(const Recipe& recipe, const std::vector<std::string>& hosts) {
  RankMap map;
  map.order = recipe.parallel.order;
  const int per_node = map.ranks_per_node = static_cast<int>(recipe.launch.ranks_on_host);
  const Mesh first = mesh_of(recipe, 0);
  const int world = first.world();
  const bool cuda = device_of(recipe) == DeviceKind::cuda;
  const std::string cpu =
      fmt::format("cpu, {} thread{}", threads_per_rank(recipe), threads_per_rank(recipe) == 1 ? "" : "s");
  for (int rank = 0; rank < world; ++rank) {
    MappedRank place;
    place.mesh = first;
    place.mesh.rank = rank;
    place.node = rank / per_node;
    place.local_rank = rank % per_node;
    LT_CHECK(place.node < static_cast<int>(hosts.size()),
             "expected a host for each node of {} ranks with {} per node, got {} hosts", world, per_node,
             hosts.size());
    place.host = hosts[static_cast<size_t>(place.node)];
    place.device = cuda ? fmt::format("cuda:{}", place.local_rank) : cpu;
    map.ranks.push_back(std::move(place));
  }
  for (const Axis a : first.order) {
    if (first.size(a) == 1) continue;
    AxisSpan span{.axis = a, .size = first.size(a), .groups = world / first.size(a), .most_nodes = 1};
    for (const MappedRank& place : map.ranks) {
      if (place.mesh.coordinate(a) != 0) continue;  // once per group
      std::set<int> nodes;
      for (int r : place.mesh.group(a)) nodes.insert(r / per_node);
      span.most_nodes = std::max(span.most_nodes, static_cast<int>(nodes.size()));
    }
    const bool tensor = std::find(kTensorAxes.begin(), kTensorAxes.end(), a) != kTensorAxes.end();
    if (span.most_nodes > 1 && (tensor || a == Axis::context) && span.size <= per_node)
      map.notes.push_back(
          fmt::format("{} groups of {} span {} nodes and would fit into one of {} ranks: parallel.order with "
                      "{} first, and degrees whose product divides {}, keep them on one node",
                      axis_name(a), span.size, span.most_nodes, per_node, tensor ? "tp" : "tp-cp", per_node));
    if (span.most_nodes > 1 && a == Axis::data && first.two_levels())
      map.notes.push_back(fmt::format(
          "the first level of gradients, {} ranks, spans {} nodes: parallel.{}: node keeps it inside one",
          first.size(first.shard), span.most_nodes, recipe.parallel.levels_key()));
    map.axes.push_back(span);
  }
  if (first.sites > 1)
    map.notes.push_back(fmt::format("diloco.sites: {} of {} neighbouring rank{} each, in the order of ranks",
                                    first.sites, first.site_ranks(), first.site_ranks() == 1 ? "" : "s"));
  return map;
}

std::string rank_map_text(const RankMap& map, size_t most, const char* rest) {
  std::string out = fmt::format("ranks, parallel.order {}, {} a node\n", map.order, map.ranks_per_node);
  size_t width = 4;
  for (const MappedRank& p : map.ranks) width = std::max(width, p.host.size());
  out += fmt::format("  {:>6}  {:<{}}  {:>5}", "rank", "host", width, "local");
  for (const AxisSpan& a : map.axes) out += fmt::format("  {:>8}", axis_name(a.axis));
  out += "  device\n";
  const size_t all = map.ranks.size();
  for (size_t i = 0; i < std::min(all, most); ++i) {
    const MappedRank& p = map.ranks[i];
    out += fmt::format("  {:>6}  {:<{}}  {:>5}", p.mesh.rank, p.host, width, p.local_rank);
    for (const AxisSpan& a : map.axes) out += fmt::format("  {:>8}", p.mesh.coordinate(a.axis));
    out += "  " + p.device + "\n";
  }
  if (all > most) out += fmt::format("  {:>6}  {} ranks more ({})\n", "...", all - most, rest);
  for (const AxisSpan& a : map.axes)
    out += fmt::format(
        "  {} group{} of {} over {}: {}\n", a.groups, a.groups == 1 ? "" : "s", a.size, axis_name(a.axis),
        a.most_nodes == 1 ? std::string("each within a node") : fmt::format("over {} nodes", a.most_nodes));
  for (const std::string& note : map.notes) out += "  note: " + note + "\n";
  return out;
}

std::string rank_map_json(const RankMap& map) {
  nlohmann::ordered_json j{{"order", map.order}, {"ranks_per_node", map.ranks_per_node}};
  j["ranks"] = nlohmann::ordered_json::array();
  for (const MappedRank& p : map.ranks) {
    nlohmann::ordered_json r{{"rank", p.mesh.rank},
                             {"node", p.node},
                             {"host", p.host},
                             {"device", p.device},
                             {"local_rank", p.local_rank}};
    for (const AxisSpan& a : map.axes) r[std::string(axis_name(a.axis))] = p.mesh.coordinate(a.axis);
    j["ranks"].push_back(std::move(r));
  }
  j["axes"] = nlohmann::ordered_json::array();
  for (const AxisSpan& a : map.axes)
    j["axes"].push_back(
        {{"axis", axis_name(a.axis)}, {"size", a.size}, {"groups", a.groups}, {"most_nodes", a.most_nodes}});
  j["notes"] = map.notes;
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace ltrain
