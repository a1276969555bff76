// Every command refuses the same recipes in the same words, before a process is started, and leaves nothing
// behind: recipe check, plan, a dry run, a run, and a run whose ranks were started by another launcher.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"
#include "tests/runtime/recipe/bad_recipe_table.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

std::string quoted(const std::string& word) {
  std::string out = "'";
  for (char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

struct Way {
  const char *command, *variables;
};
constexpr Way kRecipeCheck{"recipe check", ""}, kPlan{"plan", ""}, kDryRun{"run --dry-run", ""},
    kRun{"run", ""}, kJoinedRun{"run", "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1"},
    kJoinedDryRun{"run --dry-run", "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1"};

/// Names of files in the folder, all the way down.
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    out.push_back(entry.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_CASE("a recipe that is refused is refused by every command, in the same words") {
  TempRun t;
  const std::vector<BadRecipe> all = all_bad_recipes();
  REQUIRE(all.size() >= 100);
  // A sample that goes through every table; tests/runtime/recipe runs all of them through the one function.
  int seen = 0;
  for (size_t at = 3; at < all.size(); at += 17) {
    const BadRecipe& bad = all[at];
    if (bad.ranks > 0) continue;
    std::ofstream(t.folder() + "/r.yaml") << with_document_marks(bad.text);
    std::string words = "r.yaml";
    for (const std::string& o : bad.overrides) words += " " + quoted(o);
    const auto before = files_in(t.folder());
    for (const Way& way : {kRecipeCheck, kPlan, kDryRun, kRun, kJoinedDryRun, kJoinedRun}) {
      const Outcome o = t.sh(fmt::format("{} {}", way.command, words), way.variables);
      INFO(way.variables << " " << way.command << " " << bad.name << "\n" << o.text);
      CHECK(o.code == 64);
      CHECK_THAT(o.text, Contains(bad.expected));
    }
    CHECK(files_in(t.folder()) == before);
    ++seen;
  }
  CHECK(seen >= 6);
}

TEST_CASE("an empty recipe has no data to train on: a plan reads none, and every other command says so") {
  TempRun t;
  std::ofstream(t.folder() + "/r.yaml") << "";
  const Outcome plan = t.sh("plan r.yaml");
  INFO(plan.text);
  CHECK(plan.code == 0);
  CHECK_THAT(plan.text, Contains("none refused\nfits: "));
  for (const Way& way : {kRecipeCheck, Way{"slurm", ""}, kDryRun, kRun, kJoinedRun}) {
    const Outcome o = t.sh(fmt::format("{} r.yaml", way.command), way.variables);
    INFO(way.command << "\n" << o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains("data.train"));
  }
}

TEST_CASE("what this machine lacks is refused by a dry run as by a run, spawned or joined") {
  TempRun t;
  struct Case {
    const char* override;
    int code;
    const char* told;
  };
  for (const Case& c :
       {Case{"device=cuda", 64, "device"}, Case{"data.train.0.path=missing", 65, "missing"},
        Case{"data.eval.0.path=missing", 65, "missing"},
        Case{"checkpoint.resume=nowhere/checkpoints/step-00000004", 73, "nowhere"},
        Case{"output_dir=/proc/nothing", 73, "/proc/nothing"},
        Case{"offload.optimizer={device: nvme, path: /nowhere/of/disk}", 64, "/nowhere/of/disk"}}) {
    const auto before = files_in(t.folder());
    std::vector<std::string> texts;
    for (const Way& way : {kDryRun, kRun, kJoinedDryRun, kJoinedRun}) {
      const Outcome o = t.sh(fmt::format("{} tiny.yaml parallel.data=1 {}", way.command, quoted(c.override)),
                             fmt::format("CUDA_VISIBLE_DEVICES= {}", way.variables));
      INFO(way.variables << " " << way.command << " " << c.override << "\n" << o.text);
      CHECK(o.code == c.code);
      CHECK_THAT(o.text, Contains(c.told));
      texts.push_back(o.text);
    }
    INFO(c.override << "\n" << texts[0] << "\n" << texts[1] << "\n" << texts[3]);
    CHECK(texts[0] == texts[1]);
    CHECK(texts[2] == texts[0]);
    CHECK(files_in(t.folder()) == before);
  }
}

TEST_CASE("a network interface that the host does not have is refused, whether it would be used or not") {
  TempRun t;
  for (const Way& way : {kDryRun, kRun}) {
    const Outcome o = t.sh(fmt::format("{} tiny.yaml launch.interface=none0", way.command));
    INFO(o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains("launch.interface = none0") && Contains("on this host"));
  }
  CHECK(t.sh("run --dry-run tiny.yaml launch.interface=lo").code == 0);
}

TEST_CASE("a good recipe is accepted by every command, and only a run leaves something behind") {
  TempRun t;
  const auto before = files_in(t.folder());
  for (const Way& way : {kRecipeCheck, kPlan, kDryRun, kJoinedDryRun}) {
    const Outcome o = t.sh(fmt::format("{} tiny.yaml parallel.data=1", way.command), way.variables);
    INFO(way.command << "\n" << o.text);
    CHECK(o.code == 0);
  }
  CHECK(files_in(t.folder()) == before);
  for (const Way& way : {kRun, kJoinedRun}) {
    const Outcome o =
        t.sh(fmt::format("{} tiny.yaml parallel.data=1 train.train_steps=1", way.command), way.variables);
    INFO(way.command << "\n" << o.text);
    CHECK(o.code == 0);
    std::filesystem::remove_all(t.folder() + "/run");
  }
}
