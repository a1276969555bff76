// Layouts of several axes through the real launcher: the losses of one process, the planned bytes on every
// axis, checkpoints that go from one layout to another, and a dead rank in each axis's collective.
#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <chrono>
#include <cmath>
#include <numeric>
#include <regex>

#include "base/time_scale.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;

namespace {

const std::string kBase =
    "run tiny.yaml precision=fp64 train.eval_interval=0 model.num_hidden_layers=4 parallel.zero_stage=0 ";

struct Layout {
  const char* name;
  std::string settings;
  int ranks;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"tensor 2", "parallel.data=1 parallel.tensor=2", 2},
      {"tensor 2, sequence", "parallel.data=1 parallel.tensor=2 parallel.sequence_parallel=true", 2},
      {"tensor 2, in parts", "parallel.data=1 parallel.tensor=2 parallel.async_tensor_parallel=on", 2},
      {"tensor 2, sequence, in parts",
       "parallel.data=1 parallel.tensor=2 parallel.sequence_parallel=true parallel.async_tensor_parallel=on",
       2},
      {"ZeRO-2", "parallel.data=2 parallel.zero_stage=2", 2},
      {"ZeRO-3", "parallel.data=2 parallel.zero_stage=3", 2},
      {"2d", "parallel.data=1 parallel.tensor=4 parallel.tensor_mode=2d", 4},
      {"3d", "parallel.data=1 parallel.tensor=8 parallel.tensor_mode=3d train.micro_batch_size=4", 8},
      {"pipeline 2", "parallel.data=1 parallel.pipeline=2 parallel.schedule=zb-h1", 2},
      {"context 2", "parallel.data=1 parallel.context=2", 2},
      {"data 2, tensor 2", "parallel.data=2 parallel.tensor=2 parallel.zero_stage=1", 4},
      {"two nodes of 2, hybrid ZeRO-1", "parallel.data=4 parallel.zero_stage=1 parallel.shard_group=2", 4},
      {"two nodes of 2, hybrid ZeRO-3", "parallel.data=4 parallel.zero_stage=3 parallel.shard_group=2", 4},
      {"two nodes of 2, two-level sum", "parallel.data=4 parallel.hierarchical_reduction=2", 4},
      {"data 2, tensor 2, other order", "parallel.data=2 parallel.tensor=2 parallel.order=dp-tp-pp-cp", 4},
  };
  return all;
}

void check_fp64_losses(const std::vector<std::string>& one, const std::vector<std::string>& many) {
  REQUIRE(one.size() == 6);
  REQUIRE(many.size() == one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    const double want = std::stod(one[i].substr(2)), got = std::stod(many[i].substr(2));
    CHECK(std::abs(got - want) <= 1e-12 * std::abs(want));
  }
}

}  // namespace

TEST_CASE("every layout through the launcher: losses of one process, planned bytes on every axis") {
  TempRun t;
  const Outcome alone = t.sh(kBase + "parallel.data=1 output_dir=one");
  INFO(alone.text);
  REQUIRE(alone.code == 0);
  const auto one = t.metric("lm_loss", "one");
  for (const Layout& l : layouts()) {
    const Outcome o = t.sh(kBase + l.settings + " output_dir=many");
    INFO(l.name << "\n" << o.text);
    REQUIRE(o.code == 0);
    check_fp64_losses(one, t.metric("lm_loss", "many"));
    const auto plan = nlohmann::json::parse(read_file(t.folder() + "/many/plan.json"));
    std::map<std::string, int64_t> planned, used;
    for (const auto& c : plan["ranks"][0]["communication"])
      planned[c["axis"]] += 6 * c["wire_bytes"].get<int64_t>();
    const auto usage = nlohmann::json::parse(read_file(t.folder() + "/many/logs/usage-00000.json"));
    for (const auto& [axis, bytes] : usage["train_wire_bytes_by_axis"].items()) used[axis] = bytes;
    std::erase_if(planned, [](const auto& e) { return e.second == 0; });
    std::erase_if(used, [](const auto& e) { return e.second == 0; });
    CHECK_FALSE(used.empty());
    CHECK(planned == used);
    CHECK(std::filesystem::exists(t.folder() + "/many/logs/usage-0000" + std::to_string(l.ranks - 1) +
                                  ".json"));
    CHECK(t.sh("checkpoint verify many").code == 0);
    // One process reads what the layout wrote.
    const Outcome text = t.sh("generate many --prompt 'line ' --tokens 5 --json");
    INFO(text.text);
    CHECK(text.code == 0);
    std::filesystem::remove_all(t.folder() + "/many");
  }
}

TEST_CASE("a run goes on from a checkpoint under one layout after another, as if never broken") {
  TempRun t;
  REQUIRE(t.sh(kBase + "parallel.data=1 output_dir=one").code == 0);
  const auto one = t.metric("lm_loss", "one");
  // Two steps under each, each from the checkpoint of the one before.
  const auto& l = layouts();
  const size_t first = GENERATE(size_t{0}, size_t{3});
  std::vector<std::string> losses;
  for (size_t i = 0; i < 3; ++i) {
    const std::string steps = std::to_string(2 * (i + 1));
    // The learning rate follows the schedule of the whole run.
    const Outcome o = t.sh(kBase + l[(first + 2 * i) % l.size()].settings +
                           " output_dir=many schedule.lr_decay_steps=6 train.train_steps=" + steps);
    INFO(o.text);
    REQUIRE(o.code == 0);
  }
  check_fp64_losses(one, t.metric("lm_loss", "many"));
  CHECK(t.sh("checkpoint verify many").code == 0);
}

/// Ranks started by hand on nodes of so many each, as torchrun's variables say it.
Outcome on_nodes(const TempRun& t, const std::vector<int>& nodes, const std::string& settings) {
  std::string command, wait;
  const int world = std::accumulate(nodes.begin(), nodes.end(), 0);
  int rank = 0;
  for (size_t node = 0; node < nodes.size(); ++node)
    for (int local = 0; local < nodes[node]; ++local, ++rank) {
      command += fmt::format(
          "RANK={} WORLD_SIZE={} LOCAL_RANK={} LOCAL_WORLD_SIZE={} GROUP_RANK={} MASTER_ADDR=127.0.0.1 "
          "MASTER_PORT={} {} {} {} & p{}=$!\n",
          rank, world, local, nodes[node], node, 20000 + ::getpid() % 20000, LTRAIN_BINARY, kBase, settings,
          rank);
      wait += fmt::format("wait $p{} || code=$?; ", rank);
    }
  return t.shell(command + "code=0; " + wait + "exit $code");
}

TEST_CASE("shard_group: node is the ranks that each node has, nodes that differ are refused") {
  TempRun t;
  const std::string hybrid = "parallel.data=4 parallel.zero_stage=2 parallel.shard_group=";
  REQUIRE(t.sh(kBase + "parallel.data=1 output_dir=one").code == 0);
  const Outcome node = on_nodes(t, {2, 2}, hybrid + "node output_dir=node");
  INFO(node.text);
  REQUIRE(node.code == 0);
  check_fp64_losses(t.metric("lm_loss", "one"), t.metric("lm_loss", "node"));
  // The same as by number, to the bit, through the launcher: one node there.
  REQUIRE(t.sh(kBase + hybrid + "2 output_dir=number").code == 0);
  CHECK(t.metric("lm_loss", "node") == t.metric("lm_loss", "number"));
  CHECK(t.metric("grad_norm", "node") == t.metric("grad_norm", "number"));
  const auto across = [&](const std::string& run) {
    const auto plan = nlohmann::json::parse(read_file(t.folder() + "/" + run + "/plan.json"));
    int64_t bytes = 0;
    for (const auto& c : plan["ranks"][0]["communication"])
      if (c["axis"] == "replica") {
        bytes += c["wire_bytes"].get<int64_t>();
        CHECK(c["network_bytes"] == (run == "node" ? c["wire_bytes"].get<int64_t>() : 0));
      }
    return bytes;
  };
  CHECK(across("node") > 0);
  CHECK(across("node") == across("number"));
  // Negative control: over all four there is one level. (Their norms differ in the last bits, or by chance do
  // not.)
  REQUIRE(t.sh(kBase + hybrid + "all output_dir=all").code == 0);
  CHECK(across("all") == 0);

  const Outcome uneven = on_nodes(t, {3, 1}, hybrid + "node output_dir=uneven");
  INFO(uneven.text);
  CHECK(uneven.code != 0);
  CHECK_THAT(uneven.text,
             Catch::Contains("parallel.shard_group = node: nodes of 3 ranks have unequal parts"));
  // Each node's number divides, and they differ: only together do ranks see it.
  const Outcome mixed = on_nodes(t, {4, 2, 2},
                                 "train.micro_batch_size=1 parallel.data=8 parallel.zero_stage=2 "
                                 "parallel.shard_group=node output_dir=mixed");
  INFO(mixed.text);
  CHECK(mixed.code == 64);
  CHECK_THAT(mixed.text, Catch::Contains("nodes have 2 to 4 ranks, and parallel.shard_group: node needs"));
}

TEST_CASE("a rank killed in a collective of each axis: bounded, and named with group and number") {
  struct Case {
    std::string group, settings;
    int at;  ///< number of the collective: in the middle of a step, of an early one
  };
  TempRun t;
  for (const Case& c :
       {Case{"tensor", "parallel.data=1 parallel.tensor=2", 405},
        Case{"gradient", "parallel.data=2 parallel.zero_stage=3", 405},
        Case{"(shard|replicate|gradient)", "parallel.data=4 parallel.zero_stage=3 parallel.shard_group=2",
             405},
        Case{"context", "parallel.data=1 parallel.context=2 parallel.context_comm=all_gather", 400},
        Case{"(stage 0 to 1|stage 1 to 0|world)", "parallel.data=1 parallel.pipeline=2", 20}}) {
    const auto begin = std::chrono::steady_clock::now();
    const Outcome o =
        t.sh(kBase + c.settings + " output_dir=many train.train_steps=100000 checkpoint.save_interval=0",
             fmt::format("LTRAIN_FAULT=collective.enter:1:{}:kill", c.at));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    INFO(c.group << "\n" << o.text);
    CHECK(o.code == 71);
    CHECK(seconds < 30 * ltrain::time_scale());  // start and the steps before included
    CHECK(std::regex_search(o.text, std::regex("run failed: rank 1 on host .* signal 9 \\(SIGKILL\\)")));
    // Its last heartbeat is older than its end: said so, and no call that it left long ago.
    CHECK(std::regex_search(
        o.text, std::regex("\\(SIGKILL\\), last heard of \\d+\\.\\d s before, in section \\w+( \\d+)?\n")));
    CHECK(std::regex_search(o.text, std::regex("consequence on ranks? [0-9, -]+: group \"" + c.group +
                                               "\": rank \\d lost rank \\d in \\w+ #\\d+ of \\d+ ")));
    std::filesystem::remove_all(t.folder() + "/many");
  }
}
