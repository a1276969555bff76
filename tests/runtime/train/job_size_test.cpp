// How many ranks a job has, from the recipe, the environment, and the GPUs of a node.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "runtime/check/check_job.h"
#include "runtime/files/write_file.h"
#include "runtime/machines/machine_profile.h"
#include "runtime/plan/make_plan.h"
#include "tests/runtime/recipe/bad_recipe_table.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using Kind = LaunchEnvironment::Kind;

namespace {

Recipe recipe(const std::vector<std::string>& overrides) {
  return parse_recipe("data: {train: [x]}\ntrain: {micro_batch_size: 1, global_batch_size: 48}\n", "r.yaml",
                      overrides);
}

JobSize size_of(const std::vector<std::string>& overrides, int gpus = 0, const LaunchEnvironment& e = {}) {
  return job_size(recipe(overrides), e, gpus);
}

bool equal(const JobSize& a, int world, int local) { return a.world == world && a.ranks_per_node == local; }

}  // namespace

TEST_CASE("ranks of a job: the axes, launch.ranks_per_node, one a GPU, one on the CPU", "[train]") {
  CHECK(equal(size_of({}), 1, 1));
  CHECK(equal(size_of({"parallel.data=3"}), 3, 3));
  CHECK(equal(size_of({"parallel.data=3"}, 8), 3, 3));  // the axes are given: no more than they make
  CHECK(equal(size_of({"parallel.tensor=2"}), 2, 2));
  CHECK(equal(size_of({"launch.ranks_per_node=4"}, 8), 4, 4));
  CHECK(equal(size_of({}, 8), 8, 8));
  CHECK(equal(size_of({"parallel.tensor=2", "model.num_attention_heads=4"}, 8), 8, 8));
  CHECK(equal(size_of({"debug.shared_gpu=true"}, 8), 1, 1));
  // Too few GPUs for one group: the CPU with device: auto; device: cuda is refused for what is missing.
  CHECK(equal(size_of({"parallel.tensor=4"}, 2), 4, 4));
}

TEST_CASE("GPUs that make no whole groups are refused with numbers that do", "[train]") {
  const Recipe r = recipe({"parallel.tensor=3", "model.num_attention_heads=3", "model.hidden_size=96",
                           "model.intermediate_size=96", "device=cpu"});
  const JobSize size = job_size(r, {}, 8);
  CHECK(equal(size, 8, 8));
  CHECK_THROWS_WITH(resolve(r, size.world, size.ranks_per_node), Catch::Contains("start 6 or 9"));
}

TEST_CASE("ranks of a job on several nodes, and of one that something else started", "[train]") {
  LaunchEnvironment nodes;
  nodes.kind = Kind::node;
  nodes.nodes = 4;
  CHECK(equal(size_of({"parallel.data=8"}, 0, nodes), 8, 2));
  CHECK(equal(size_of({}, 8, nodes), 32, 8));
  CHECK(equal(size_of({}, 0, nodes), 4, 1));
  CHECK_THROWS_WITH(size_of({"parallel.data=6"}, 0, nodes), Catch::Contains("do not divide over 4 nodes"));
  nodes.ranks_per_node = 3;
  CHECK(equal(size_of({"parallel.data=8"}, 8, nodes), 12, 3));
  LaunchEnvironment rank;
  rank.kind = Kind::rank;
  rank.world_size = 16, rank.local_size = 8;
  CHECK(equal(size_of({"parallel.data=8"}, 4, rank), 16, 8));
}

TEST_CASE("a recipe for several nodes is planned on one machine", "[train]") {
  const auto planned = [](const std::vector<std::string>& overrides, int gpus = 0, int world = 0) {
    return planned_size(recipe(overrides), {}, gpus, world);
  };
  CHECK(equal(planned({"parallel.data=16", "launch.ranks_per_node=8"}), 16, 8));
  CHECK(equal(planned({"parallel.data=16"}), 16, 16));
  CHECK(equal(planned({"parallel.tensor=2"}), 2, 2));  // the same number as `run` starts
  CHECK(equal(planned({}, 8), 8, 8));
  CHECK(equal(planned({"launch.ranks_per_node=8"}, 0, 64), 64, 8));
}

TEST_CASE("ranks on cards that nothing lays out on nodes are on nodes of eight", "[train]") {
  const auto planned = [](int world, const std::string& profile, std::vector<std::string> overrides = {}) {
    overrides.insert(overrides.end(), {"device=cuda", "precision=bf16"});
    return planned_size(recipe(overrides), {}, 0, world, profile);
  };
  for (const char* card : {"a100", "h100", "h200"}) CHECK(equal(planned(64, card), 64, 8));
  CHECK(planned(64, "h100").node.text() == "a node: 8 H100, assumed");
  CHECK(equal(planned(8, "h100"), 8, 8));
  CHECK(planned(8, "h100").node.cards == 0);
  CHECK(equal(planned(12, "h100"), 12, 8));  // a node and a half
  CHECK(equal(planned(64, "h100", {"launch.ranks_per_node=4"}), 64, 4));
  CHECK(planned(64, "h100", {"launch.ranks_per_node=64"}).node.cards == 0);
  CHECK(equal(planned(0, "h100", {"parallel.data=48"}), 48, 8));
  // Nodes from the environment are not an assumption.
  LaunchEnvironment nodes;
  nodes.kind = Kind::node;
  nodes.nodes = 4;
  CHECK(equal(planned_size(recipe({"device=cuda", "parallel.data=48"}), nodes, 0, 48, "h100"), 48, 12));
  // This machine has them all.
  MachineProfile here = card_profile("h100");
  here.of_this_machine = true;
  CHECK(assumed_node(here, 16, 16).cards == 0);
  CHECK(assumed_node(here, 32, 16).cards == 8);
  CHECK(assumed_node(builtin_profile(2), 64, 0).cards == 0);
}

TEST_CASE("ranks on CPUs of a cluster file are on its nodes", "[train]") {
  const test::TemporaryFolder folder;
  save_profile(builtin_profile(4), folder.path() + "/mine.json");
  const std::string path = folder.path() + "/ours.yaml";
  write_file(path,
             "format: ltrain.cluster.v1\nname: ours\nprofile: mine.json\nnodes: 3\ngpus_per_node: 2\n"
             "network: ethernet-100g\n");
  const auto planned = [&](std::vector<std::string> overrides, int world = 0) {
    overrides.emplace_back("device=cpu");
    return planned_size(recipe(overrides), {}, 0, world, path);
  };
  CHECK(equal(planned({"parallel.data=6"}), 6, 2));
  CHECK(planned({"parallel.data=6"}).node.text() == "a node: 2 CPU ranks, by " + path);
  CHECK(equal(planned({"parallel.data=6", "launch.ranks_per_node=1"}), 6, 1));
  CHECK(equal(planned({}), 6, 2));  // all of them
  CHECK_THROWS_WITH(planned({"parallel.data=8"}), Catch::Contains("has 6 cards; nearest valid value: 6"));
}

TEST_CASE("every bad recipe is refused in the same words for whatever a command checks of it",
          "[train][recipe]") {
  using Part = JobChecks::Part;
  int refused = 0;
  for (const test::BadRecipe& bad : test::all_bad_recipes()) {
    if (bad.ranks > 0) continue;  // the axes against a number of ranks that the table gives
    for (const Part part : {Part::recipe, Part::rank, Part::node, Part::job}) {
      INFO(bad.name);
      try {
        const Recipe given = parse_recipe(test::with_document_marks(bad.text), "r.yaml", bad.overrides);
        JobChecks checks;
        checks.part = part;
        check_job(given, job_size(given, {}, 0), checks);
        FAIL("accepted");
      } catch (const Error& e) {
        CHECK(e.code() == ExitCode::usage);
        CHECK(e.what() == bad.expected);
      }
      ++refused;
    }
  }
  CHECK(refused >= 400);
}
