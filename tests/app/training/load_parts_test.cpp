// checkpoint.load.parts through the real program: what a fresh run takes from another run's checkpoint.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

double value(const std::string& metric) { return std::stod(metric.substr(metric.find(':') + 1)); }

/// Each step's batch is all of the data, so that two runs differ in nothing but their beginning.
struct OneBatchRun : TempRun {
  OneBatchRun() {
    std::ofstream text(folder() + "/short.txt");
    for (int i = 0; i < 257; ++i) text << static_cast<char>('a' + i * i % 23);
    text.close();
    REQUIRE(sh("data build --input short.txt --output short --tokenizer byte").code == 0);
  }
  std::vector<std::string> losses(const std::string& folder, const std::string& overrides) const {
    const Outcome o = sh(
        "run tiny.yaml data.train=[short] data.eval=[] train.eval_interval=0 precision=fp64 parallel.data=1 "
        "parallel.zero_stage=0 schedule.lr_decay_style=constant schedule.lr_warmup_steps=0 "
        "checkpoint.save_interval=3 checkpoint.keep_latest=0 output_dir=" +
        folder + " " + overrides);
    INFO(o.text);
    REQUIRE(o.code == 0);
    return metric("lm_loss", folder);
  }
};

}  // namespace

TEST_CASE("checkpoint.load.parts: all goes on in another folder, bit for bit") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  const std::string branch =
      "run tiny.yaml output_dir=branch checkpoint.load.path=run/checkpoints/step-00000004 "
      "checkpoint.load.parts=all ";
  for (const std::string layout : {"", "parallel.data=1 parallel.zero_stage=0 output_dir=one "}) {
    const Outcome o = t.sh(branch + layout);
    INFO(o.text);
    REQUIRE(o.code == 0);
    CHECK_THAT(o.text,
               Contains("the run begins with the whole state of run/checkpoints/step-00000004, step 4"));
    const auto whole = t.metric("lm_loss"), part = t.metric("lm_loss", layout.empty() ? "branch" : "one");
    REQUIRE(part.size() == 2);
    if (layout.empty()) CHECK(part == std::vector<std::string>(whole.begin() + 4, whole.end()));
    for (size_t i = 0; i < 2; ++i) CHECK(value(part[i]) == Approx(value(whole[4 + i])).epsilon(1e-6));
  }
  // Once it has a checkpoint of its own, it goes on from that.
  const Outcome more = t.sh(branch + "train.train_steps=8 schedule.lr_decay_steps=6");
  INFO(more.text);
  CHECK(more.code == 0);
  CHECK_THAT(more.text, Contains("resuming from branch/checkpoints/step-00000006"));
}

TEST_CASE("checkpoint.load.parts: weights+optimizer goes on with the moments, from step 0 on") {
  OneBatchRun t;
  const auto whole = t.losses("whole", "train.train_steps=9");
  const auto same = [&](const std::vector<std::string>& some, size_t after) {
    REQUIRE(some.size() == 3);
    double apart = 0;
    for (size_t i = 0; i < 3; ++i)
      apart = std::max(apart, std::abs(value(some[i]) / value(whole[after + i]) - 1));
    return apart < 1e-12;
  };
  const std::string at = "train.train_steps=3 checkpoint.load.path=";
  CHECK(same(
      t.losses("first", at + "whole/checkpoints/step-00000003 checkpoint.load.parts=weights+optimizer"), 3));
  // Its moments are averages of six updates, three of them before its step 0; another layout reads them.
  CHECK(same(t.losses("second", at + "first checkpoint.load.parts=weights+optimizer parallel.data=2 "
                                     "parallel.zero_stage=2"),
             6));
  // Negative control: weights alone make another second step.
  CHECK_FALSE(same(t.losses("weights", at + "whole/checkpoints/step-00000003"), 3));
}

TEST_CASE("checkpoint.load.parts: what cannot be taken is refused before anything is started") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=2").code == 0);
  REQUIRE(t.sh("export run hf").code == 0);
  struct Case {
    std::string arguments, text;
    int code;
  };
  const std::string states = "checkpoint.load.parts=weights+optimizer checkpoint.load.path=";
  for (const Case& c :
       {Case{states + "hf", "which has weights alone; nearest valid value: weights", 64},
        Case{states + "run optimizer.kind=lion", "which this run does not keep", 64},
        Case{states + "run precision=fp64", "nearest valid value of precision: fp32", 64},
        Case{states + "nowhere", "checkpoint.load.path = nowhere: there is no such folder", 73},
        Case{"checkpoint.load.parts=all checkpoint.load.path=run seed=7", "checkpoint.resume_data: restart",
             64},
        Case{"checkpoint.load.parts=all", "checkpoint.load.parts", 64}}) {
    const Outcome o = t.sh("run tiny.yaml output_dir=other " + c.arguments);
    INFO(c.arguments << "\n" << o.text);
    CHECK(o.code == c.code);
    CHECK_THAT(o.text, Contains(c.text));
    CHECK_FALSE(std::filesystem::exists(t.folder() + "/other"));
  }
}
