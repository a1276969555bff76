// DiLoCo through the real program, with processes: resume, stop, failures, usage.
#include <catch2/catch.hpp>

#include "base/json/json.h"
#include "tests/app/outcomes.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;

namespace {

const std::string kTwoSites =
    "run tiny.yaml diloco.sites=2 diloco.inner_steps=3 checkpoint.save_interval=3 "
    "checkpoint.async_save=false ";

nlohmann::json json_of(const TempRun& t, const std::string& file) {
  return nlohmann::json::parse(read_file(t.folder() + "/" + file));
}

}  // namespace

TEST_CASE("a run of two sites sends as planned, and goes on from its checkpoint bit for bit") {
  TempRun t;
  const Outcome whole = t.sh(kTwoSites);
  INFO(whole.text);
  REQUIRE(whole.code == 0);
  const auto plan = json_of(t, "run/plan.json")["ranks"][0], used = json_of(t, "run/logs/usage-00000.json");
  CHECK(plan["wire_bytes_per_step"] == 0);
  CHECK(plan["other_wire_bytes_per_step"].get<int64_t>() > 0);
  CHECK(used["train_wire_bytes"] == 2 * plan["other_wire_bytes_per_step"].get<int64_t>());
  CHECK(used["arena_bytes"] == used["plan_arena_bytes"]);
  const auto shard = [&](const std::string& rank) {
    return read_file(t.folder() + "/run/checkpoints/step-00000006/shard-0000" + rank +
                     "-of-00002.safetensors");
  };
  const std::string first = shard("0"), second = shard("1");
  CHECK(first.find("optimizer/outer_momentum/") != std::string::npos);
  CHECK(second.find("optimizer/exp_avg_site_00001/") != std::string::npos);
  std::filesystem::remove_all(t.folder() + "/run");
  REQUIRE(t.sh(kTwoSites + "train.stop_step=3").code == 0);
  const Outcome rest = t.sh(kTwoSites);
  INFO(rest.text);
  CHECK(has(rest, "resuming from run/checkpoints/step-00000003"));
  CHECK((shard("0") == first && shard("1") == second));
  CHECK(t.sh("checkpoint verify run").code == 0);
  CHECK(t.sh("eval run --threads 1").code == 0);
  // Without DiLoCo the first site's moments go on.
  const Outcome plain = t.sh("run tiny.yaml train.train_steps=8");
  INFO(plain.text);
  CHECK(plain.code == 0);
}

TEST_CASE("a run of sites with shares counts all samples, sends as planned, and goes on bit for bit") {
  TempRun t;
  const std::string shares = "diloco.shares=[3,1] train.micro_batch_size=1 ";
  const Outcome whole = t.sh(kTwoSites + shares);
  INFO(whole.text);
  REQUIRE(whole.code == 0);
  CHECK(t.metric("consumed_samples").back() == "6:48");
  CHECK(t.metric("consumed_tokens").back() == "6:1536");
  const auto plan = json_of(t, "run/plan.json")["ranks"][0];
  for (const char* rank : {"0", "1"}) {
    const auto used = json_of(t, std::string("run/logs/usage-0000") + rank + ".json");
    CHECK(used["train_wire_bytes"] == 2 * plan["other_wire_bytes_per_step"].get<int64_t>());
    CHECK(used["arena_bytes"] == used["plan_arena_bytes"]);
  }
  const auto shards = [&] {
    std::string all;
    for (const char* rank : {"0", "1"})
      all += read_file(t.folder() + "/run/checkpoints/step-00000006/shard-0000" + rank +
                       "-of-00002.safetensors");
    return all;
  };
  const std::string end = shards();
  std::filesystem::remove_all(t.folder() + "/run");
  REQUIRE(t.sh(kTwoSites + shares + "train.stop_step=3").code == 0);
  REQUIRE(t.sh(kTwoSites + shares).code == 0);
  CHECK(shards() == end);
  // From the same checkpoint with other shares.
  std::filesystem::remove_all(t.folder() + "/run/checkpoints/step-00000006");
  const Outcome other = t.sh(kTwoSites + "diloco.shares=[1,3] train.micro_batch_size=1");
  INFO(other.text);
  CHECK(other.code == 0);
  CHECK(has(other, "diloco.shares [3, 1] -> [1, 3]"));
  CHECK(shards() != end);
}

TEST_CASE("a request to stop waits for the next synchronization of sites") {
  TempRun t;
  const Outcome o = t.sh(kTwoSites + "train.exit_duration_in_mins=0.00001");
  INFO(o.text);
  CHECK(o.code == 75);
  CHECK(has(o, "saved run/checkpoints/step-00000003"));
  CHECK_FALSE(has(o, "step 4/6"));
  const Outcome steps = t.sh(kTwoSites + "--steps 1");
  INFO(steps.text);
  CHECK(steps.code == 64);
  CHECK(has(steps, "nearest valid value: --steps 3, which ends at step 6"));
}

TEST_CASE("a site with a loss that is not finite ends the run by name") {
  TempRun t;
  const auto [fault, rank] =
      GENERATE(std::pair("train.loss:0:2:nan", "rank 0"), std::pair("train.loss:1:2:nan", "rank 1"));
  const Outcome o = t.sh(kTwoSites, std::string("LTRAIN_FAULT=") + fault);
  INFO(o.text);
  CHECK(o.code == 76);
  CHECK(has(o, "a weight was NaN or infinite: "));
  CHECK(has(o, std::string(" of ") + rank + " on host "));
  CHECK(has(o, "There is no checkpoint yet"));
}

TEST_CASE("a run of fragments sends as planned, and goes on while a difference is on its way bit for bit") {
  TempRun t;
  const std::string kStream =
      "run tiny.yaml diloco.sites=2 diloco.inner_steps=4 diloco.fragments=2 diloco.delay=1 diloco.merge=0.5 "
      "train.train_steps=6 checkpoint.save_interval=3 checkpoint.async_save=false ";
  const std::string sum = GENERATE("", "diloco.sum=int8 ");
  const Outcome whole = t.sh(kStream + sum);
  INFO(whole.text);
  REQUIRE(whole.code == 0);
  const auto plan = json_of(t, "run/plan.json")["ranks"][0], used = json_of(t, "run/logs/usage-00000.json");
  // Differences leave after steps 1, 3 and 5; sites agree after step 4.
  const auto& kinds = plan["other_kinds"];
  const auto bytes = [&](size_t kind) { return kinds.at(kind)["wire_bytes_per_step"].get<int64_t>(); };
  const int64_t first = plan["wire_bytes_per_step"];
  REQUIRE(kinds.size() == 3);
  CHECK(first > 0);
  CHECK(bytes(0) == 0);
  CHECK(bytes(1) > 0);
  CHECK(bytes(2) == 16);
  CHECK(used["train_wire_bytes"] == 2 * first + bytes(1) + bytes(2));
  CHECK(used["arena_bytes"] == used["plan_arena_bytes"]);
  const auto shards = [&] {
    std::string all;
    for (const char* rank : {"0", "1"})
      all += read_file(t.folder() + "/run/checkpoints/step-00000006/shard-0000" + rank +
                       "-of-00002.safetensors");
    return all;
  };
  const std::string end = shards();
  for (const char* name : {"outer_momentum/", "outer_change/", "local_weights/", "local_weights_site_00001/"})
    CHECK(end.find(std::string("optimizer/") + name) != std::string::npos);
  std::filesystem::remove_all(t.folder() + "/run/checkpoints/step-00000006");
  const Outcome other = t.sh(kStream + sum + "diloco.delay=0");
  INFO(other.text);
  CHECK(other.code == 64);
  CHECK(has(other, "after step 3 the difference of weights of fragment 1 is on its way between sites"));
  const Outcome rest = t.sh(kStream + sum);
  INFO(rest.text);
  CHECK(has(rest, "resuming from run/checkpoints/step-00000003"));
  CHECK(shards() == end);
  CHECK(t.sh("checkpoint verify run").code == 0);
  CHECK(t.sh("eval run --threads 1").code == 0);
}
