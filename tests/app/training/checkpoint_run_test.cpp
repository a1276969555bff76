// Checkpoints that a run finds in its folder: pinned ones, broken ones, those of a branch that it leaves, and
// one with a state that is not finite.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <regex>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kResume4 = " checkpoint.resume=run/checkpoints/step-00000004";

/// Every file below a folder, by its path from there, and its bytes, but .lock, which says who came last.
std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const auto& e : fs::recursive_directory_iterator(folder))
    if (e.is_regular_file() && e.path().filename() != ".lock")
      all[fs::relative(e.path(), folder)] = read_file(e.path());
  return all;
}

struct CheckpointRun : TempRun {
  std::string at(const std::string& name) const { return folder() + "/run/checkpoints/" + name; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& e : fs::directory_iterator(folder() + "/run/checkpoints"))
      if (const std::string n = e.path().filename(); n[0] != '.') all.push_back(n);
    std::sort(all.begin(), all.end());
    return all;
  }
  Outcome run(const std::string& overrides = "") const { return sh("run tiny.yaml " + overrides); }
  nlohmann::json list() const { return nlohmann::json::parse(sh("checkpoint list run --json").text); }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a pinned checkpoint that the run would come to is refused before a process is started") {
  CheckpointRun t;
  REQUIRE(t.run("checkpoint.keep_latest=0").code == 0);
  std::ofstream(t.at("step-00000006/KEEP")).close();
  const auto before = contents(t.folder() + "/run");
  for (const char* how : {"checkpoint.resume=run/checkpoints/step-00000004", "checkpoint.resume=never"}) {
    const Outcome o = t.run(std::string(how) + " train.train_steps=12 optimizer.lr=5e-4");
    INFO(o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains("run/checkpoints/step-00000006: is pinned by its file KEEP") &&
                           Contains("another output_dir"));
    CHECK(contents(t.folder() + "/run") == before);
  }
  // The ranks look for themselves where there is no launcher.
  const Outcome rank = t.sh("run tiny.yaml parallel.data=1 " + kResume4,
                            "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1");
  INFO(rank.text);
  CHECK(rank.code == 64);
  CHECK_THAT(rank.text, Contains("is pinned by its file KEEP"));
  CHECK(contents(t.at("step-00000006")).size() == 5);
  // Negative controls: neither a checkpoint beyond the end of the run nor the one that the run goes on from
  // stops it. obstacle.
  CHECK(t.run(kResume4 + " train.train_steps=5").code == 0);
  const Outcome on = t.run("train.train_steps=8");
  CHECK(on.code == 0);
  CHECK_THAT(on.text, Contains("resuming from run/checkpoints/step-00000006"));
  CHECK(fs::exists(t.at("step-00000006/KEEP")));
}

TEST_CASE("keep_best: the checkpoint of the lowest held-out loss stays across a resume, by name") {
  CheckpointRun t;
  const std::string best = "checkpoint.keep_best=true train.eval_interval=2 checkpoint.keep_latest=2 ";
  // A learning rate that ruins the model after step 4, which therefore stays the best.
  REQUIRE(t.run(best + "train.train_steps=4").code == 0);
  const Outcome o = t.run(best + "train.train_steps=12 optimizer.lr=3 schedule.lr_decay_style=constant");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.text, Contains("resuming from run/checkpoints/step-00000004"));
  CHECK(t.names() == Names{"best", "step-00000004", "step-00000010", "step-00000012"});
  CHECK(fs::read_symlink(t.at("best")) == "step-00000004");
  const Outcome listed = t.sh("checkpoint list run");
  CHECK_THAT(listed.text, Contains("committed, best: held-out loss "));
  const auto json = nlohmann::json::parse(t.sh("checkpoint list run --json").text);
  for (const auto& c : json["checkpoints"]) {
    CHECK(c["best"] == (c["step"] == 4));
    CHECK(c["eval_loss"].is_number());
  }
  CHECK(t.sh("eval run/checkpoints/best --data text-val").code == 0);
  CHECK_THAT(t.run(best + "train.eval_interval=4").text,
             Contains("checkpoint.keep_best") && Contains("nearest valid value: false, or "
                                                          "checkpoint.save_interval: 4"));
}

TEST_CASE("a checkpoint and --version name the program's version and its commit") {
  CheckpointRun t;
  REQUIRE(t.run().code == 0);
  const std::string told = t.sh("--version").text;
  INFO(told);
  CHECK(std::regex_match(told, std::regex("ltrain \\d+\\.\\d+\\.\\d+( \\([0-9a-f]{10,}\\))?\n")));
  const std::string manifest = read_file(t.at("step-00000006/manifest.json"));
  CHECK_THAT(manifest, Contains("\"written_by\": \"" + told.substr(7, told.size() - 8) + "\""));
}

TEST_CASE("a folder without COMMIT gets another name when the run saves its step, with all that is in it") {
  CheckpointRun t;
  REQUIRE(t.run().code == 0);
  fs::remove(t.at("step-00000006/COMMIT"));
  std::ofstream(t.at("step-00000006/notes.txt")) << "mine";
  auto before = contents(t.at("step-00000006"));
  const Outcome o = t.run();
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains("resuming from run/checkpoints/step-00000004"));
  CHECK_THAT(o.text,
             Contains("step-00000006 was there already and has another name now: uncommitted-step-00000006"));
  CHECK(t.names() == Names{"step-00000004", "step-00000006", "uncommitted-step-00000006"});
  CHECK(contents(t.at("uncommitted-step-00000006")) == before);
  // Damage that only hashes show is damage too; names that are taken get a number.
  for (int round : {1, 2}) {
    std::fstream(t.at("step-00000006/shard-00001-of-00002.safetensors"), std::ios::in | std::ios::out)
        .seekp(100000)
        .put('!');
    before = contents(t.at("step-00000006"));
    const Outcome damaged = t.run();
    INFO(damaged.text);
    CHECK(damaged.code == 0);
    const std::string name = round == 1 ? "damaged-step-00000006" : "damaged-step-00000006-2";
    INFO(name);
    // The run uses the name that its start announced.
    CHECK_THAT(damaged.text, Contains("the first save gives it another name, " + name + ", and") &&
                                 Contains("has another name now: " + name + "\n"));
    REQUIRE(fs::exists(t.at(name)));
    CHECK(contents(t.at(name)) == before);
  }
  const Outcome verify = t.sh("checkpoint verify run");
  INFO(verify.text);
  CHECK(verify.code == 0);  // a damaged checkpoint that was set aside is not reported again
  CHECK_THAT(verify.text, Contains("uncommitted-step-00000006: set aside; ") && Contains("no COMMIT record"));
  CHECK_THAT(verify.text, Contains("damaged-step-00000006-2: set aside; ") && Contains("its xxh3-128 is"));
}

TEST_CASE("a run that goes back to an older checkpoint sets the newer ones aside, and later runs follow it") {
  CheckpointRun t;
  REQUIRE(t.run("checkpoint.keep_latest=0").code == 0);
  const auto old6 = contents(t.at("step-00000006"));
  // Before the first save nothing is renamed: what fails at once has changed nothing.
  CHECK(t.sh("run tiny.yaml" + kResume4, "LTRAIN_FAULT=train.step:0:1:error").code != 0);
  CHECK(t.names() == Names{"step-00000002", "step-00000004", "step-00000006"});

  Outcome o = t.run(kResume4 + " train.train_steps=5 optimizer.lr=5e-4");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains("step-00000006 is newer than the step 4 that this run goes on from: the first "
                              "save gives it another name"));
  CHECK(t.names() == Names{"step-00000004", "step-00000005", "superseded-step-00000006"});
  CHECK(contents(t.at("superseded-step-00000006")) == old6);
  CHECK(t.sh("checkpoint list run").text.find("set aside; committed") != std::string::npos);
  CHECK(t.list().at("set_aside").at(0).at("set_aside") == "superseded");
  CHECK(t.list().at("set_aside").at(0).at("valid") == true);
  CHECK(t.list().at("checkpoints").size() == 2);

  o = t.run("optimizer.lr=5e-4");  // auto: of the new branch, not the newest number
  INFO(o.text);
  CHECK_THAT(o.text, Contains("resuming from run/checkpoints/step-00000005"));
  CHECK(contents(t.at("superseded-step-00000006")) == old6);
  CHECK(contents(t.at("step-00000006")) != old6);

  o = t.run("checkpoint.resume=never");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK(t.names() == Names{"step-00000004", "step-00000006", "superseded-step-00000005",
                           "superseded-step-00000006", "superseded-step-00000006-2"});
  // The run can go on from it by its name.
  o = t.run("checkpoint.resume=run/checkpoints/superseded-step-00000006 train.train_steps=8");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(t.sh("checkpoint show run/checkpoints/superseded-step-00000006").text, Contains("step 6"));
}

TEST_CASE("a state that is not finite is never saved: 76, and the way back is named exactly") {
  CheckpointRun t;
  const std::string each =
      "checkpoint.save_interval=1 train.eval_interval=0 schedule.lr_decay_style=constant ";
  REQUIRE(t.run(each + "train.train_steps=4").code == 0);
  for (const char* async : {"true", "false"}) {
    const Outcome o =
        t.run(each + "train.train_steps=12 optimizer.lr=1e39 checkpoint.async_save=" + std::string(async));
    INFO(o.text);
    CHECK(o.code == 76);
    CHECK_THAT(o.text,
               Contains("step 5: ") && Contains(" elements are not finite") && Contains("nothing was saved"));
    CHECK_THAT(o.text,
               Contains("went on from step 4") &&
                   Contains("by checkpoint.resume=run/checkpoints/step-00000004.") &&
                   Contains("go back to step 3 with checkpoint.resume=run/checkpoints/step-00000003"));
    CHECK(t.names() == Names{"step-00000003", "step-00000004"});
  }
  const Outcome o = t.run(each + "train.train_steps=6");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains("resuming from run/checkpoints/step-00000004"));
}

TEST_CASE(
    "weights that are finite but ruined: the next start names the checkpoint before them, and that works") {
  CheckpointRun t;
  const std::string each =
      "checkpoint.save_interval=1 train.eval_interval=0 schedule.lr_decay_style=constant ";
  REQUIRE(t.run(each + "train.train_steps=4").code == 0);
  Outcome o = t.run(each + "train.train_steps=12 optimizer.lr=1e30");
  INFO(o.text);
  CHECK(o.code == 76);
  CHECK_THAT(o.text,
             Contains("step 6: loss ") && Contains("newest checkpoint is of step 5: go on from it with "
                                                   "checkpoint.resume=run/checkpoints/step-00000005"));
  CHECK(t.names() == Names{"step-00000004", "step-00000005"});
  o = t.run(each + "train.train_steps=12");  // the rate is right again, the weights are not
  INFO(o.text);
  CHECK(o.code == 76);
  CHECK_THAT(o.text, Contains("went on from step 5 and has saved nothing since") &&
                         Contains("go back to step 4 with checkpoint.resume=run/checkpoints/step-00000004"));
  o = t.run(each + "train.train_steps=6 checkpoint.resume=run/checkpoints/step-00000004");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK(t.names() == Names{"step-00000005", "step-00000006", "superseded-step-00000005"});
  CHECK(t.run(each + "train.train_steps=7").code == 0);
}
