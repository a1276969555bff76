#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

#include "base/json/json.h"

namespace {
std::pair<int, std::string> run(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, n);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}
const std::string kBinary = LTRAIN_BINARY;
}  // namespace

TEST_CASE("doctor: a table for people, JSON for programs, the same rows in both") {
  const auto [code, table] = run(kBinary + " doctor");
  CHECK(code == 0);
  CHECK(table.find('\033') == std::string::npos);  // no colour into a pipe
  const auto [json_code, text] = run(kBinary + " doctor --json");
  CHECK(json_code == 0);
  const auto json = nlohmann::json::parse(text);
  CHECK(json["schema"] == "ltrain-doctor-1");
  CHECK(json["ok"] == true);
  CHECK(json["rows"].size() > 12);
  // Without a GPU too: what sits where.
  for (const char* what : {"NUMA nodes", "network cards"}) CHECK(table.find(what) != std::string::npos);
  for (const auto& node : json["topology"]["numa_nodes"]) CHECK(node["cores"].size() > 0);
  CHECK(json["topology"]["network_cards"].is_array());
  CHECK(json["topology"]["gpus"].is_array());
  for (const auto& row : json["rows"]) CHECK(table.find(row["what"].get<std::string>()) != std::string::npos);
}

TEST_CASE("doctor: an environment that would stop a run is a FAIL, with what to do") {
  const auto [code, text] = run("LTRAIN_RANK=3 LTRAIN_WORLD_SIZE=2 LTRAIN_COORDINATOR=h:1 LTRAIN_TOKEN=t " +
                                kBinary + " doctor --json");
  CHECK(code == 64);
  CHECK(text.find("\"fail\"") != std::string::npos);
  CHECK(text.find("LTRAIN_RANK=3") != std::string::npos);
}

TEST_CASE("doctor and plan say which rank of a recipe is where") {
  const std::string recipe = std::string(LTRAIN_SOURCE_DIR) + "/recipes/tensor.yaml parallel.data=2";
  for (const char* command : {" doctor ", " plan "}) {
    const auto [code, text] = run(kBinary + command + recipe + " launch.ranks_per_node=2");
    INFO(text);
    CHECK(code == 0);
    CHECK(text.find("ranks, parallel.order tp-cp-dp-pp, 2 a node") != std::string::npos);
    CHECK(text.find("       3  node 1      1         1         1  cpu") != std::string::npos);
    CHECK(text.find("2 groups of 2 over data: over 2 nodes") != std::string::npos);
    CHECK(text.find("2 groups of 2 over tensor: each within a node") != std::string::npos);
    const auto [json_code, json_text] = run(kBinary + command + recipe + " --json");
    CHECK(json_code == 0);
    CHECK(nlohmann::json::parse(json_text)["rank_map"]["ranks"].size() == 4);
  }
  const auto [code, text] = run(kBinary + " doctor " + recipe + " parallel.order=tp-tp-dp-pp 2>&1");
  CHECK(code == 64);
  CHECK(text.find("tp is a duplicate; each of tp, cp, dp, pp once") != std::string::npos);
}
