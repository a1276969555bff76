// Locations of ranks in the map.
#include "runtime/plan/rank_map.h"
#include "base/json/json.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace ltrain;
using Catch::Contains;

namespace {

Recipe recipe_of_axes(const std::vector<std::string>& overrides, int on_host = 4) {
  const Recipe r = parse_recipe(
      "model: {num_hidden_layers: 4, num_attention_heads: 8, num_key_value_heads: 8}\n"
      "train: {global_batch_size: 32}\nparallel: {data: 2, tensor: 2, pipeline: 2}\n",
      "r.yaml", overrides);
  return resolve(r, static_cast<int>(ranks(r)), on_host);
}

}  // namespace

TEST_CASE("tensor groups are on one node and stages apart, unless the recipe says otherwise", "[plan]") {
  const RankMap map = map_ranks(recipe_of_axes({}), {"a", "b"});
  REQUIRE(map.ranks.size() == 8);
  CHECK(map.ranks[5].host == "b");
  CHECK(map.ranks[5].local_rank == 1);
  CHECK(map.ranks[5].mesh.coordinate(Axis::pipeline) == 1);
  CHECK(map.ranks[5].mesh.coordinate(Axis::tensor) == 1);
  REQUIRE(map.axes.size() == 3);
  CHECK(map.axes[0].axis == Axis::tensor);
  CHECK(map.axes[0].most_nodes == 1);
  CHECK(map.axes[1].axis == Axis::data);
  CHECK(map.axes[1].most_nodes == 1);
  CHECK(map.axes[2].axis == Axis::pipeline);
  CHECK(map.axes[2].most_nodes == 2);
  CHECK(map.notes.empty());
  const RankMap other = map_ranks(recipe_of_axes({"parallel.order=dp-pp-cp-tp"}), {"a", "b"});
  CHECK(other.ranks[4].mesh.coordinate(Axis::tensor) == 1);
  REQUIRE(other.notes.size() == 1);
  CHECK_THAT(other.notes[0], Contains("tensor groups of 2 span 2 nodes") && Contains("tp first"));
}

TEST_CASE("two levels of gradients are two axes of the map, and a first level over two nodes is noted",
          "[plan]") {
  const auto map = [](const char* group) {
    return map_ranks(recipe_of_axes({"parallel.data=4", "parallel.pipeline=1", "parallel.zero_stage=1",
                                     std::string("parallel.shard_group=") + group},
                                    2),
                     {"a", "b", "c", "d"});
  };
  const RankMap wide = map("2");  // with tensor 2: ranks 0 to 3
  REQUIRE(wide.axes.size() == 3);
  CHECK((wide.axes[1].axis == Axis::data && wide.axes[1].size == 2 && wide.axes[1].most_nodes == 2));
  CHECK((wide.axes[2].axis == Axis::replica && wide.axes[2].size == 2));
  REQUIRE(wide.notes.size() == 1);
  CHECK_THAT(wide.notes[0],
             Contains("the first level of gradients, 2 ranks, spans 2 nodes: parallel.shard_group"));
  CHECK(map("4").notes.empty());  // one level: it has to
}

TEST_CASE("the map as text and as JSON", "[plan]") {
  const RankMap map = map_ranks(recipe_of_axes({}), {"a", "node-b"});
  const std::string text = rank_map_text(map);
  CHECK_THAT(text, Contains("ranks, parallel.order tp-cp-dp-pp, 4 a node"));
  CHECK_THAT(text, Contains("       5  node-b      1         1         0         1  cpu"));
  CHECK_THAT(text, Contains("4 groups of 2 over pipeline: over 2 nodes"));
  CHECK_THAT(rank_map_text(map, 4), Contains("     ...  4 ranks more (--json has all)\n") &&
                                        Contains("       3  a") && !Contains("       4  node-b") &&
                                        !Contains("       7  node-b"));
  const auto j = nlohmann::json::parse(rank_map_json(map));
  CHECK(j["ranks"][5]["host"] == "node-b");
  CHECK(j["ranks"][5]["pipeline"] == 1);
  CHECK(j["axes"][2]["most_nodes"] == 2);
}

TEST_CASE("hosts are Slurm's when it names as many as there are nodes", "[plan]") {
  CHECK(host_names(2, {{"SLURM_JOB_NODELIST", "n[07-08]"}}) == std::vector<std::string>{"n07", "n08"});
  CHECK(host_names(3, {{"SLURM_JOB_NODELIST", "n[07-08]"}}).at(2) == "node 2");
  CHECK(host_names(1, {}).size() == 1);
  CHECK(ranks_per_node(recipe_of_axes({}), 8, LaunchEnvironment()) == 8);
  CHECK(ranks_per_node(recipe_of_axes({"launch.ranks_per_node=4"}), 8, LaunchEnvironment()) == 4);
  // Broken variables are the launcher's to refuse: a plan is made anywhere.
  CHECK(host_names(1, {{"SLURM_JOB_NODELIST", "n["}}).size() == 1);
  const LaunchEnvironment broken =
      environment_for_plans({{"RANK", "3"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "x"}});
  CHECK(ranks_per_node(recipe_of_axes({}), 8, broken) == 8);
}
