// A disk that fills up under what is offloaded: the run ends with the code of storage, and what was saved
// stays whole.
#include <catch2/catch.hpp>
#include <filesystem>

#include "base/error.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("a disk that is full under what is offloaded: exit 73, named, and the last checkpoint goes on") {
  struct Case {
    const char *section, *more;
    int store;  ///< fails on rank 1 in step 4 of 6; step 2 is saved
  };
  // Activations: 9 tensors of 3 layers in each of 2 micro-batches. Weights: a window of each bucket.
  const Case c = GENERATE(Case{"activations", "", 200}, Case{"params", "parallel.zero_stage=3", 21});
  TempRun t;
  std::filesystem::create_directories(t.folder() + "/disk");
  const std::string key = fmt::format("offload.{}", c.section);
  const std::string plain =
      fmt::format("run tiny.yaml model.num_hidden_layers=4 checkpoint.async_save=false {}", c.more);
  const std::string run = plain + fmt::format(" {0}.device=nvme {0}.path=disk", key);
  const Outcome whole = t.sh(plain + " output_dir=whole");
  INFO(whole.text);
  REQUIRE(whole.code == 0);
  const Outcome o = t.sh(run, fmt::format("LTRAIN_FAULT=offload.store:1:{}:skip", c.store));
  INFO(o.text);
  CHECK(o.code == 73);
  CHECK_THAT(o.text, Contains(key + ".path disk") && Contains("No space left on device"));
  CHECK_THAT(t.sh("checkpoint list run --json").text, Contains("\"step\": 2"));
  CHECK(t.sh("checkpoint verify run").code == 0);
  CHECK(std::filesystem::is_empty(t.folder() + "/disk"));
  const Outcome after = t.sh(run);
  INFO(after.text);
  CHECK(after.code == 0);
  CHECK_THAT(after.text, Contains("resuming from"));
  CHECK(t.metric("lm_loss") == t.metric("lm_loss", "whole"));  // resident, to the bit
  CHECK(t.metric("grad_norm") == t.metric("grad_norm", "whole"));
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
