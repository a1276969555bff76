// Context parallelism through the real launcher: processes and Gloo, a resume on another cut, wire bytes.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;

namespace {

void check_fp32_losses(const std::vector<std::string>& now, const std::vector<std::string>& then) {
  REQUIRE(now.size() == then.size());
  for (size_t i = 0; i < now.size(); ++i)
    CHECK(std::stod(now[i].substr(2)) == Approx(std::stod(then[i].substr(2))).epsilon(1e-6));
}

}  // namespace

TEST_CASE("context parallelism over processes gives the losses of one, whichever way and after a resume") {
  TempRun t;
  REQUIRE(t.build().code == 0);
  const std::string packed =
      " data.reset_attention_mask=true data.reset_position_ids=true model.attn_pdrop=0.1";
  REQUIRE(t.sh("run tiny.yaml parallel.data=1 parallel.zero_stage=0 output_dir=one" + packed).code == 0);
  const auto losses = t.metric("lm_loss", "one"), evals = t.metric("eval_loss", "one");
  REQUIRE(losses.size() == 6);
  REQUIRE(evals.size() == 2);
  for (const char* layout :
       {"parallel.data=1 parallel.context=2 parallel.context_comm=p2p",
        "parallel.data=1 parallel.context=2 parallel.context_comm=all_gather",
        "parallel.data=1 parallel.context=2 parallel.context_comm=a2a",
        "parallel.data=1 parallel.context=4 parallel.context_comm=a2a+p2p parallel.context_inner=2"}) {
    std::filesystem::remove_all(t.folder() + "/run");
    const Outcome o = t.sh(std::string("run tiny.yaml ") + layout + packed);
    INFO(layout << "\n" << o.text);
    REQUIRE(o.code == 0);
    check_fp32_losses(t.metric("lm_loss"), losses);
    check_fp32_losses(t.metric("eval_loss"), evals);
    const auto plan = nlohmann::json::parse(read_file(t.folder() + "/run/plan.json"));
    const auto used = nlohmann::json::parse(read_file(t.folder() + "/run/logs/usage-00000.json"));
    CHECK(used["train_wire_bytes"] == 6 * plan["ranks"][0]["wire_bytes_per_step"].get<int64_t>());
    CHECK(used["arena_bytes"] == used["plan_arena_bytes"]);
  }
  // From the last of these, on two data ranks without a cut.
  std::filesystem::remove_all(t.folder() + "/run/checkpoints/step-00000006");
  const Outcome o = t.sh("run tiny.yaml" + packed);
  INFO(o.text);
  REQUIRE(o.code == 0);
  check_fp32_losses(t.metric("lm_loss"), losses);
  CHECK(t.sh("generate run --prompt 'line ' --tokens 5").code == 0);  // one process, whatever trained it
  CHECK(t.sh("eval run").code == 0);
  const Outcome refused = t.sh("run tiny.yaml parallel.context=3");
  CHECK(refused.code == 64);
  CHECK(refused.text.find("data.seq_length = 32: must be a multiple of 2 * parallel.context (6)") !=
        std::string::npos);
}
