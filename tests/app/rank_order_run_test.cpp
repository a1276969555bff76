// Runs whose launcher numbered ranks across switches.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "parallel/comm/socket.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Four ranks on four hosts below two switches in turn, as torchrun would start them; output of rank 0.
std::string train_across_switches(const TempRun& t, const std::string& arguments,
                                  const std::string& command = "run tiny.yaml",
                                  const std::string& variables = "") {
  int port = 0;
  std::string error, script;
  ltrain::listen_on("127.0.0.1", {0}, &port, &error);
  for (int r = 0; r < 4; ++r)
    script += fmt::format(
        "RANK={0} WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK={0} MASTER_ADDR=127.0.0.1 "
        "MASTER_PORT={1} SLURMD_NODENAME=host{0} LTRAIN_TOPOLOGY=leaf{2} {6} {3} {4} {5} > out{0} 2>&1 & "
        "p{0}=$!\n",
        r, port, r % 2, LTRAIN_BINARY, command, arguments, variables);
  script += "for p in $p0 $p1 $p2 $p3; do wait $p; echo \"code $?\"; done";
  const Outcome o = t.shell(script);
  std::string all = o.text;
  for (int r = 0; r < 4; ++r) all += read_file(fmt::format("{}/out{}", t.folder(), r));
  return all;
}

}  // namespace

TEST_CASE(
    "ranks across two switches train in the order of the switches, with the losses of the launcher's order") {
  TempRun t;
  REQUIRE(t.build().code == 0);
  const std::string layout = "parallel.tensor=2 parallel.data=2 train.train_steps=4 ";
  const std::string near = train_across_switches(t, layout + "output_dir=near");
  INFO(near);
  CHECK_THAT(near,
             Contains("code 0\ncode 0\ncode 0\ncode 0\n") &&
                 Contains("ranks in the order of their switches: leaf0 (2 hosts), leaf1 (2 hosts); 2 of 4 "
                          "ranks have another number"));
  const std::string far = train_across_switches(t, layout + "launch.rank_order=launcher output_dir=far");
  INFO(far);
  CHECK_THAT(far, Contains("code 0\ncode 0\ncode 0\ncode 0\n") && !Contains("order of their switches"));
  CHECK(t.metric("lm_loss", "near") == t.metric("lm_loss", "far"));
}

TEST_CASE("a rank that dies after it was renumbered is named with its own host") {
  TempRun t;
  REQUIRE(t.build().code == 0);
  const std::string out = train_across_switches(t, "parallel.data=4 train.train_steps=4", "run tiny.yaml",
                                                "LTRAIN_FAULT=train.step:1:2:kill");
  INFO(out);
  CHECK_THAT(out, Contains("run failed: rank 1 on host host2") && !Contains("rank 2 on host host2"));
}

TEST_CASE(
    "bench --links measures the hosts of a job by class for a plan, and is refused for a process alone") {
  TempRun t;
  const std::string out = train_across_switches(t, "", "bench --links --json");
  INFO(out);
  CHECK_THAT(out, Contains("code 0\ncode 0\ncode 0\ncode 0\n") &&
                      Contains("\"schema\":\"ltrain.links.v1\"") && Contains("{\"level\":1,\"links\":2,") &&
                      Contains("{\"level\":2,\"links\":4,"));
  CHECK_THAT(train_across_switches(t, "", "bench --links"),
             Contains("between hosts below one switch") && Contains("GB/s"));
  // Four hosts below two switches in a file, and its median in a plan of such hosts.
  CHECK_THAT(train_across_switches(t, "", "bench --links --output links.json"),
             Contains("code 0\ncode 0\ncode 0\ncode 0\n") && Contains("written to links.json"));
  const std::string layout = "plan tiny.yaml parallel.data=4 launch.ranks_per_node=1 --json --links ";
  const auto links = nlohmann::json::parse(read_file(t.folder() + "/links.json"));
  std::vector<double> rates;
  for (const auto& l : links["links"]) rates.push_back(l["bytes_per_second"]);
  std::sort(rates.begin(), rates.end());
  const Outcome planned =
      t.shell("LTRAIN_PROFILE=none " + std::string(LTRAIN_BINARY) + " " + layout + "links.json 2>/dev/null");
  INFO(planned.text);
  REQUIRE(planned.code == 0);
  const auto plan = nlohmann::json::parse(planned.text);
  REQUIRE(rates.size() == 6);
  CHECK(plan["network_bytes_per_second"] == rates[3]);
  CHECK(plan["network_source"] == "measured in links.json: median of 6 links");
  CHECK(plan["links"]["levels"][0]["lowest_bytes_per_second"] == rates[0]);
  const Outcome other = t.sh("plan tiny.yaml parallel.data=4 launch.ranks_per_node=2 --links links.json");
  CHECK(other.code == 64);
  CHECK_THAT(other.text, Contains("was measured with 1 rank on a host"));
  const Outcome alone = t.sh("bench --links");
  CHECK(alone.code == 64);
  CHECK_THAT(alone.text, Contains("srun"));
}
