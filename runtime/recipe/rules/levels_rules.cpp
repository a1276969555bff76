// Rules of two-level gradient reduction: ranks of the first level.
#include <array>
#include <map>
#include <tuple>

#include "base/error.h"
#include "runtime/recipe/nearest_value.h"
#include "runtime/recipe/rules/rules.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {
namespace {

/// The key that requests two gradient levels, and its value; else an empty text.
std::pair<std::string, int64_t> levels_key(const Parallel& p) {
  const bool sharded = p.sharding().shards_optimizer();
  if (sharded && p.shard_group != kOneLevel) return {"parallel.shard_group", p.shard_group};
  if (!sharded && p.hierarchical_reduction != kOneLevel)
    return {"parallel.hierarchical_reduction", p.hierarchical_reduction};
  return {"", kOneLevel};
}

/// Checks a first level given as a number of ranks. It must divide the ranks evenly and leave more than one
/// rank in a group.
void level_size(const Recipe& r, int64_t data, const BrokenRule& broken) {
  const auto [key, value] = levels_key(r.parallel);
  if (key.empty() || value == kNode) return;
  const int64_t all = plain_mesh(r, data).size(kGradientAxes), n = value;
  const auto wrong = [&](int64_t ranks) { return plain_mesh(r, data).split_levels(ranks); };
  const auto good = [&](int64_t ranks) { return wrong(ranks).empty(); };
  if (const std::string text = wrong(n); !text.empty())
    broken(key, text + nearest(std::min(n, all + 1), 2, all, good),
           {"parallel.data", "parallel.context", "parallel.order"});
}

}  // namespace

std::string level_text(int64_t ranks) { return ranks == kNode ? "node" : std::to_string(ranks); }

namespace {

int64_t count_on_hosts(const Mesh& mesh, AxisSet axes, int64_t per_host) {
  Mesh m = mesh;
  const int world = m.world();
  std::vector<int64_t> counts(
      static_cast<size_t>(world));  // ranks on one host, indexed by the first rank of their group
  std::vector<int> groups;          // groups with ranks on the host
  int64_t each = 0;
  for (int64_t host = 0; host < world; host += per_host) {
    for (m.rank = static_cast<int>(host); m.rank < std::min<int64_t>(world, host + per_host); ++m.rank) {
      Mesh first = m;
      for (const Axis a : m.order)
        if (axes.has(a)) first.rank = first.at(a, 0);
      if (++counts[static_cast<size_t>(first.rank)] == 1) groups.push_back(first.rank);
    }
    for (const int group : groups) {
      int64_t& n = counts[static_cast<size_t>(group)];
      if (each == 0) each = n;
      if (n != each) return 0;
      n = 0;
    }
    groups.clear();
  }
  return each;
}

}  // namespace

int64_t on_each_host(const Mesh& mesh, AxisSet axes, int64_t per_host) {
  // A search asks for the same mesh many times, so answers are cached.
  using Key = std::tuple<std::array<int, kAxisCount>, int, AxisOrder, uint16_t, int64_t>;
  thread_local std::map<Key, int64_t> answers;
  constexpr size_t kMostAnswers = 4096;
  if (answers.size() > kMostAnswers) answers.clear();
  const auto [it, fresh] = answers.try_emplace({mesh.degree, mesh.sites, mesh.order, axes.bits, per_host});
  if (fresh) it->second = count_on_hosts(mesh, axes, per_host);
  return it->second;
}

/// Rules of layers whose weights are full while those of others are sharded.
static void zero_layers_rules(const Recipe& r, const BrokenRule& broken) {
  const Parallel& p = r.parallel;
  const char* key = "parallel.zero_layers";
  const int64_t most = r.model.num_hidden_layers - p.pipeline * p.virtual_pipeline + 1;
  if (p.zero_layers == 0 || most < 1) return;  // fewer layers than stages: another rule
  if (!p.sharding().shards_weights())
    return broken(key,
                  fmt::format("leaves the weights of some layers whole, and parallel.zero_stage: {} those of "
                              "all; nearest valid value: 0, or parallel.zero_stage: 3",
                              p.zero_stage),
                  {"parallel.zero_stage"});
  if (p.sharding().keeps_gathered())
    return broken(key,
                  "leaves the weights of some layers whole, and parallel.reshard_after_forward: false keeps "
                  "those of all for a step; nearest valid value: 0, or parallel.reshard_after_forward: true",
                  {"parallel.reshard_after_forward"});
  if (p.zero_layers > most)
    broken(key, fmt::format("a pipeline stage has at most {} layers; nearest valid value: {}", most, most),
           {"model.num_hidden_layers", "parallel.pipeline", "parallel.virtual_pipeline"});
}

void level_rules(const Recipe& r, const BrokenRule& broken) {
  const Parallel& p = r.parallel;
  zero_layers_rules(r, broken);
  if (!p.reshard_after_forward && !p.sharding().shards_weights())
    broken("parallel.reshard_after_forward",
           fmt::format("is of weights that are gathered for a step, and parallel.zero_stage: {} keeps them "
                       "whole; nearest valid value: true, or parallel.zero_stage: 3",
                       p.zero_stage),
           {"parallel.zero_stage"});
  if (p.sharding().keeps_gathered() && r.offload.params.on())
    broken("parallel.reshard_after_forward",
           "gathers all weights at once, and offload.params brings in those of a layer; nearest valid value: "
           "true, or offload.params.device: none",
           {"offload.params.device"});
  if (!p.sharding().shards_optimizer() && p.shard_group != kOneLevel)
    broken("parallel.shard_group",
           "nothing is sharded with parallel.zero_stage: 0; nearest valid value: all, or "
           "parallel.zero_stage: 1; parallel.hierarchical_reduction reduces on two levels without sharding",
           {"parallel.zero_stage"});
  if (p.sharding().shards_optimizer() && p.hierarchical_reduction != kOneLevel)
    broken("parallel.hierarchical_reduction",
           fmt::format("reduces whole gradients, and parallel.zero_stage: {} shards; nearest valid value: "
                       "none, with parallel.shard_group: {}; it reduces on the same two levels",
                       p.zero_stage, level_text(p.hierarchical_reduction)),
           {"parallel.zero_stage"});
  if (p.data > 0) level_size(r, p.data, broken);
}

int64_t level_layout(const Recipe& r, int64_t world, int64_t per_node, const BrokenRule& broken) {
  const auto [key, value] = levels_key(r.parallel);
  if (key.empty()) return 0;
  const Parallel& p = r.parallel;
  const int64_t data = world / (p.tensor * p.pipeline * p.context);
  if (value != kNode) {
    if (broken) level_size(r, data, broken);
    return value;
  }
  per_node = ranks_on_host(r, world, per_node);
  const Mesh mesh = plain_mesh(r, data);
  const int64_t all = mesh.size(kGradientAxes);
  const auto wrong_split = [&](int64_t ranks) { return Mesh(mesh).split_levels(ranks); };
  const int64_t n = on_each_host(mesh, kGradientAxes, per_node);
  std::string wrong;
  if (n == 0) {
    wrong = fmt::format("nodes of {} ranks have unequal parts of the {} that gradients are summed over",
                        per_node, all);
  } else if (n == 1 && all > 1) {
    wrong = fmt::format(
        "a node of {} ranks has one of the {} that gradients are summed over, and nothing to share it with",
        per_node, all);
  } else if (wrong = wrong_split(n); !wrong.empty()) {
    wrong = fmt::format("nodes of {} ranks have {} of the {} that gradients are summed over, which {}",
                        per_node, n, all, wrong);
  }
  if (broken && !wrong.empty()) {
    const int64_t near = std::max<int64_t>(2, n);
    const auto good = [&](int64_t ranks) { return wrong_split(ranks).empty(); };
    const std::string number = all > 1 ? nearest(near == n ? near : near - 1, 2, all, good) : "";
    const bool shard = key == "parallel.shard_group";
    broken(
        key,
        fmt::format("{}{}{} {}; or another parallel.order or launch.ranks_per_node", wrong,
                    number.empty() ? "; nearest valid value:" : number, number.empty() ? "" : " or",
                    shard ? "all" : "none"),
        {"launch.ranks_per_node", "parallel.order", "parallel.data", "parallel.context", "parallel.tensor"});
  }
  return n;
}

int64_t shard_ranks(const Recipe& recipe, int64_t world_size, int64_t ranks_per_node) {
  return level_layout(recipe, world_size, ranks_per_node, {});
}

}  // namespace ltrain::recipe
