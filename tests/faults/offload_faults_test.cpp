// A disk that fills up under what is offloaded: the run ends with the code of storage, and what was saved
// stays whole.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("a disk that is full when activations leave: exit 73, named, and the last checkpoint is intact") {
  TempRun t;
  std::filesystem::create_directories(t.folder() + "/disk");
  const std::string run =
      "run tiny.yaml offload.activations.device=nvme offload.activations.path=disk "
      "model.num_hidden_layers=4 checkpoint.async_save=false";
  const Outcome whole = t.sh(run + " output_dir=whole");
  INFO(whole.text);
  REQUIRE(whole.code == 0);
  // 9 tensors of 3 layers in each of 2 micro-batches: the fault is in step 4 of 6, and 2 is saved.
  const Outcome o = t.sh(run, "LTRAIN_FAULT=offload.store:1:200:skip");
  INFO(o.text);
  CHECK(o.code == 73);
  CHECK_THAT(o.text, Contains("offload.activations.path disk") && Contains("No space left on device"));
  CHECK_THAT(t.sh("checkpoint list run --json").text, Contains("\"step\": 2"));
  CHECK(t.sh("checkpoint verify run").code == 0);
  CHECK(std::filesystem::is_empty(t.folder() + "/disk"));
  const Outcome after = t.sh(run);
  INFO(after.text);
  CHECK(after.code == 0);
}

TEST_CASE("a folder that cannot take files is refused before ranks are started") {
  TempRun t;
  const auto refused = [&](const std::string& path, int code, const std::string& why) {
    const Outcome o = t.sh("run tiny.yaml offload.activations.device=nvme offload.activations.path=" + path);
    INFO(o.text);
    CHECK(o.code == code);
    CHECK_THAT(o.text, Contains("offload.activations.path = " + path) && Contains(why));
    CHECK_FALSE(std::filesystem::exists(t.folder() + "/run/metrics.jsonl"));
  };
  refused("nowhere", 64, "No such file or directory");
  refused("tiny.yaml", 64, "is not a folder");
}
