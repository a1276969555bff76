// device: cuda where there is no GPU: planned, and refused by name of what is missing before anything starts.
#include <catch2/catch.hpp>

#include "kernels/tensor/device.h"
#include "tests/app/run_program.h"
#include "tests/support/outcome.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("device: cuda without a GPU is refused by name of what is missing") {
  const std::string missing = missing_for(DeviceKind::cuda);
  if (missing.empty()) return skip_test("the refusal: there is a GPU here");
  const TempRun run;
  const Outcome o = run.sh("run tiny.yaml device=cuda parallel.data=1");
  CHECK(o.code == 64);
  INFO(o.text);
  CHECK(o.text.find("device = cuda: " + missing + "; nearest valid value: cpu") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(run.folder() + "/run"));
  // auto takes what there is.
  CHECK(run.sh("run tiny.yaml device=auto parallel.data=1 --dry-run").text.find("of 1 thread") !=
        std::string::npos);
}

TEST_CASE("device: cuda is planned on a machine without a GPU, by a card's profile") {
  const TempRun run;
  const auto plan = [&](const std::string& more) {
    const Outcome o = run.sh("plan tiny.yaml device=cuda --json " + more + " 2>/dev/null");
    REQUIRE(o.code == 0);
    return nlohmann::json::parse(o.text);
  };
  const auto h200 = plan("--profile h200"), a100 = plan("--profile a100");
  CHECK(h200["device"] == "cuda");
  CHECK(h200["profile_built_in"] == true);
  CHECK(h200["device_memory_bytes"] == 141000000000);
  CHECK(a100["step_seconds"].get<double>() > h200["step_seconds"].get<double>());
  const auto& memory = h200["ranks"][0]["memory_bytes"];
  int64_t sum = memory["arena"]["total"], of_host = memory["staging"];
  bool guessed = false;
  for (const auto& item : memory["outside"]) {
    (item["of"] == "cuda" ? sum : of_host) += item["bytes"].get<int64_t>();
    guessed = guessed || item["source"].get<std::string>().find("NOT MEASURED") == 0;
  }
  CHECK(sum == memory["total"]);
  CHECK(of_host == memory["total_of_host"]);
  CHECK(guessed);
  const Outcome text = run.sh("plan tiny.yaml device=cuda");
  CHECK(text.text.find("nothing was measured here; figures of the profile: ") != std::string::npos);
}

TEST_CASE("what a plan has for NCCL follows from the channels that its groups may have") {
  const TempRun run;
  const auto mib = [&](const std::string& layout) {
    const Outcome o = run.sh("plan tiny.yaml device=cuda --profile h200 --json " + layout + " 2>/dev/null");
    REQUIRE(o.code == 0);
    const auto plan = nlohmann::json::parse(o.text);
    int64_t bytes = 0;
    for (const auto& item : plan["ranks"][0]["memory_bytes"]["outside"])
      if (item["name"] == "NCCL") bytes += item["bytes"].get<int64_t>();
    return bytes >> 20;
  };
  CHECK(mib("parallel.data=1") == 0);
  CHECK(mib("parallel.data=2") == 16 * 16);  // one group, of as many channels as NCCL chooses
  CHECK(mib("parallel.data=1 parallel.tensor=2 parallel.zero_stage=0") ==
        (16 + 1) * 16);  // and the world, for numbers alone
  // Two links of four channels, and the world.
  CHECK(mib("parallel.data=1 parallel.pipeline=2 parallel.zero_stage=0") == (2 * 4 + 1) * 16);
  // And the group of the first and the last stage, for the gradient of the embedding that they share.
  CHECK(mib("parallel.data=1 parallel.pipeline=2 parallel.zero_stage=0 model.tie_word_embeddings=true") ==
        (2 * 4 + 1 + 16) * 16);
  CHECK(mib("parallel.data=2 debug.shared_gpu=true") == 2 * 16);
}

TEST_CASE("the group that has one channel for numbers is given no tensor, by the plan") {
  const TempRun run;
  // The largest call in a step: of the world, which is over several axes here, or of the other groups.
  const auto largest = [&](bool of_world, const std::string& more) {
    const Outcome o =
        run.sh("plan tiny.yaml device=cuda --profile h200 --json parallel.tensor=2 " + more + " 2>/dev/null");
    INFO(o.text);
    CHECK(o.code == 0);
    const auto plan = nlohmann::json::parse(o.text);
    double most = 0;
    for (const auto& rank : plan["ranks"])
      for (const auto& c : rank["communication"]) {
        const std::string axis = c["axis"];
        if ((axis.find('+') != std::string::npos) == of_world)
          most = std::max(most, c["bytes"].get<double>() / c["calls"].get<double>());
      }
    return most;
  };
  for (const std::string more : {"", "parallel.pipeline=2", "parallel.zero_stage=3",
                                 "model.architecture=mixtral model.moe.num_experts=4 model.moe.top_k=2 "
                                 "model.moe.intermediate_size=64 parallel.expert=2"}) {
    CAPTURE(more);
    CHECK(largest(true, more) > 0);
    CHECK(largest(true, more) <= 512);   // some numbers of each layer
    CHECK(largest(false, more) > 4096);  // a row of tokens has as many bytes
  }
}
