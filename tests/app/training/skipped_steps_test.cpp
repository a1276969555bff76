// Steps without an update, through the real program: what they mean for schedules.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using nlohmann::json;

TEST_CASE("schedules go on with updates: steps that overflow in fp16 do not count, also across a resume") {
  TempRun t;
  const std::string run =
      "run tiny.yaml precision=fp16 loss_scale.initial=1073741824 loss_scale.hysteresis=1 "
      "loss_scale.backoff_factor=0.25 train.train_steps=16 schedule.lr_decay_style=linear "
      "schedule.lr_warmup_steps=4 schedule.lr_decay_steps=10 checkpoint.save_interval=2 ";
  const auto rows = [&](const std::string& name) {
    std::vector<json> all;
    std::ifstream in(t.folder() + "/" + name + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);)
      if (json row = json::parse(line); row.contains("lr")) all.push_back(row);
    return all;
  };
  const Outcome unbroken = t.sh(run + "output_dir=one");
  INFO(unbroken.text);
  REQUIRE(unbroken.code == 0);
  const std::vector<json> one = rows("one");
  REQUIRE(one.size() == 16);
  int64_t skipped = 0;
  for (const json& row : one) {
    // Warm-up to 1e-3 over 4 updates, then a line to 0 at the 10th: of updates, not of steps.
    const double update = row["step"].get<double>() - static_cast<double>(skipped);
    const double lr = update <= 4 ? update / 4 : update <= 10 ? 1 - (update - 4) / 6 : 0;
    INFO(row.dump());
    CHECK(row["lr"].get<double>() == Approx(1e-3 * lr).margin(1e-12));
    skipped = row["skipped_steps"];
  }
  REQUIRE(skipped >= 3);  // else this shows nothing
  REQUIRE(skipped <= 8);
  // Stopped while it skips, and again after the first updates.
  for (const char* steps : {"2", "4", "16"}) REQUIRE(t.sh(run + "output_dir=two --steps " + steps).code == 0);
  for (const char* key : {"lr", "lm_loss", "skipped_steps"})
    CHECK(t.metric(key, "two") == t.metric(key, "one"));
  // The same of updates that train.skip_grad_norm skips: none is made, and the warm-up stays at its
  // beginning.
  const Outcome none = t.sh(
      "run tiny.yaml output_dir=none train.skip_grad_norm=1e-9 train.train_steps=5 "
      "schedule.lr_warmup_steps=4");
  INFO(none.text);
  REQUIRE(none.code == 0);
  for (const json& row : rows("none")) CHECK(row["lr"].get<double>() == Approx(2.5e-4));
}
