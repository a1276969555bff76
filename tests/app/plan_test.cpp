// `ltrain plan` and `ltrain slurm` of recipes that do not fit.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Activations of 100000 sequences are more than any card has.
const std::string kTooLarge = " train.micro_batch_size=100000 train.global_batch_size=200000";

std::string last_line(const std::string& text) { return text.substr(text.rfind('\n', text.size() - 2) + 1); }

}  // namespace

TEST_CASE("a plan that does not fit says so in its last line, in JSON and by exit code 78") {
  const TempRun t;
  const Outcome small = t.sh("plan tiny.yaml device=cuda --profile h100");
  INFO(small.text);
  CHECK(small.code == 0);
  CHECK_THAT(last_line(small.text), Catch::StartsWith("fits: a rank needs ") && Contains("74.5 GiB"));
  CHECK(nlohmann::json::parse(t.sh("plan tiny.yaml device=cuda --profile h100 --json").text)["fits"] == true);

  const Outcome large = t.sh("plan tiny.yaml device=cuda --profile h100" + kTooLarge);
  INFO(large.text);
  CHECK(large.code == 78);
  CHECK_THAT(last_line(large.text),
             Catch::StartsWith("does not fit: a rank needs ") &&
                 Contains("a card has 74.5 GiB; what would help: a smaller train.micro_batch_size"));
  const Outcome j = t.sh("plan tiny.yaml device=cuda --profile h100 --json --trace t.json" + kTooLarge);
  CHECK(j.code == 78);
  CHECK(nlohmann::json::parse(j.text)["fits"] == false);
  CHECK(std::filesystem::exists(t.folder() + "/t.json"));  // what was asked for is written all the same
  // The drawing of a schedule says nothing about memory.
  CHECK(t.sh("plan tiny.yaml device=cuda --profile h100 --schedule" + kTooLarge).code == 0);

  const Outcome cpu = t.sh(
      "plan tiny.yaml device=cpu train.micro_batch_size=1000000 "
      "train.global_batch_size=2000000");
  INFO(cpu.text);
  CHECK(cpu.code == 78);
  CHECK_THAT(last_line(cpu.text), Contains("this host has"));
}

TEST_CASE("64 cards are eight nodes with a network, and the plan says that this is assumed") {
  const TempRun t;
  const std::string cards =
      " device=cuda parallel.data=64 train.micro_batch_size=1 train.global_batch_size=64 ";
  const Outcome text = t.sh("plan tiny.yaml --profile h100" + cards);
  INFO(text.text);
  CHECK(text.code == 0);
  CHECK_THAT(text.text, Contains("\na node: 8 H100, assumed; launch.ranks_per_node says otherwise\n") &&
                            Contains("over 8 nodes") && Contains("between nodes: 3200.0 Gbit/s"));
  const auto j = nlohmann::json::parse(t.sh("plan tiny.yaml --json --profile h100" + cards).text);
  CHECK(j["node"] == nlohmann::json({{"cards", 8}, {"card", "H100"}, {"assumed", true}}));
  CHECK(j["rank_map"]["ranks_per_node"] == 8);
  CHECK(j["ranks"][0]["communication"][0]["network_bytes"] > 0);
  const auto one = nlohmann::json::parse(
      t.sh("plan tiny.yaml --json --profile h100 launch.ranks_per_node=64" + cards).text);
  CHECK_FALSE(one.contains("node"));
  CHECK(one["ranks"][0]["communication"][0]["network_bytes"] == 0);
  CHECK(j["step_seconds"] > one["step_seconds"]);
  const Outcome script = t.sh("slurm tiny.yaml" + cards);
  INFO(script.text);
  CHECK_THAT(script.text, Contains("#SBATCH --nodes=8\n") && Contains("#SBATCH --gpus-per-node=8\n") &&
                              Contains("# A node: 8 ") &&
                              Contains(", assumed; --ranks-per-node says otherwise"));
}

TEST_CASE("slurm writes no script for what does not fit, and one with --force") {
  const TempRun t;
  const Outcome refused = t.sh("slurm tiny.yaml device=cuda --output job.sbatch" + kTooLarge);
  INFO(refused.text);
  CHECK(refused.code == 78);
  CHECK_THAT(refused.text, Contains("the plan exceeds the GPU's memory: a rank needs ") &&
                               Contains("--force goes on all the same"));
  CHECK_FALSE(std::filesystem::exists(t.folder() + "/job.sbatch"));
  CHECK(t.sh("slurm tiny.yaml device=cuda --output job.sbatch --force" + kTooLarge).code == 0);
  CHECK(std::filesystem::exists(t.folder() + "/job.sbatch"));
  // The nodes of a cluster are not this host.
  CHECK(t.sh("slurm tiny.yaml device=cpu train.micro_batch_size=1000000 train.global_batch_size=2000000")
            .code == 0);
}
