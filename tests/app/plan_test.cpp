// `ltrain plan` and `ltrain slurm` of recipes that do not fit.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;
using Catch::Detail::Approx;

namespace {

/// Activations of a million sequences are more than any card has.
const std::string kTooLarge =
    " train.micro_batch_size=1000000 train.global_batch_size=2000000 model.hidden_size=128";

std::string last_line(const std::string& text) { return text.substr(text.rfind('\n', text.size() - 2) + 1); }

}  // namespace

TEST_CASE("a plan that does not fit says so in its last line, in JSON and by exit code 78") {
  const TempRun t;
  const Outcome small = t.sh("plan tiny.yaml device=cuda --profile h100");
  INFO(small.text);
  CHECK(small.code == 0);
  CHECK_THAT(last_line(small.text), Catch::StartsWith("fits: a rank needs ") && Contains("74.5 GiB"));
  CHECK(nlohmann::json::parse(t.sh("plan tiny.yaml device=cuda --profile h100 --json").text)["fits"] == true);

  const Outcome large = t.sh("plan tiny.yaml device=cuda --profile h100" + kTooLarge);
  INFO(large.text);
  CHECK(large.code == 78);
  CHECK_THAT(
      last_line(large.text),
      Catch::StartsWith("does not fit: a rank needs ") &&
          Contains("a card has 74.5 GiB; enough by itself: train.micro_batch_size: 125000 (a rank needs ") &&
          Contains("`ltrain plan RECIPE --search --gpus 2` finds the fastest layout that fits"));
  const Outcome j = t.sh("plan tiny.yaml device=cuda --profile h100 --json --trace t.json" + kTooLarge);
  CHECK(j.code == 78);
  CHECK(nlohmann::json::parse(j.text)["fits"] == false);
  CHECK(std::filesystem::exists(t.folder() + "/t.json"));  // requested files are written all the same
  // The drawing of a schedule says nothing about memory.
  CHECK(t.sh("plan tiny.yaml device=cuda --profile h100 --schedule" + kTooLarge).code == 0);

  const Outcome cpu =
      t.sh("plan tiny.yaml device=cpu train.micro_batch_size=1000000 train.global_batch_size=2000000");
  INFO(cpu.text);
  CHECK(cpu.code == 78);
  CHECK_THAT(last_line(cpu.text), Contains("this host has"));
}

TEST_CASE("a plan of a pipeline names its schedule, that of auto too, and its bubble") {
  const TempRun t;
  for (const char* schedule : {"1f1b", "auto"}) {
    const std::string run =
        std::string(
            "plan tiny.yaml device=cuda --profile h100 --world 4 parallel.pipeline=2 parallel.schedule=") +
        schedule;
    const auto drawn = nlohmann::json::parse(t.sh(run + " --schedule --json").text),
               plan = nlohmann::json::parse(t.sh(run + " --json").text);
    INFO(run);
    CHECK(plan["schedule"] == drawn["schedule"]);
    // The plan's actions are those of whole passes, whose first one waits and whose last ones reduce.
    CHECK(plan["bubble_share"].get<double>() == Approx(drawn["bubble_share"].get<double>()).margin(0.01));
    const std::string line = fmt::format(
        "{:.1f} % of the pipeline's time; {}{}", 100 * plan["bubble_share"].get<double>(),
        plan["schedule"].get<std::string>(), schedule == std::string("auto") ? ", which auto chose" : "");
    CHECK_THAT(t.sh(run).text, Contains("\n  bubble ") && Contains(line));
  }
  const Outcome single = t.sh("plan tiny.yaml device=cuda --profile h100");
  CHECK(single.text.find("bubble") == std::string::npos);
}

TEST_CASE("a plan of another machine does not name this host") {
  const TempRun t;
  CHECK_THAT(t.sh("plan tiny.yaml device=cuda --profile h100 --world 2").text, Contains("       0  node 0 "));
  CHECK(t.sh("plan tiny.yaml device=cpu --world 2").text.find("node 0") == std::string::npos);
}

TEST_CASE("recompute: auto where nothing fits says what a card has and what would help") {
  const TempRun t;
  const Outcome o = t.sh("plan tiny.yaml device=cuda --profile h100 recompute.granularity=auto" + kTooLarge);
  INFO(o.text);
  CHECK(o.code == 78);
  CHECK_THAT(o.text, Contains("does not fit: recompute.granularity: auto: a rank needs ") &&
                         Contains("a card has 74.5 GiB; what would help: a smaller train.micro_batch_size"));
  CHECK_THAT(o.text, !Contains("recompute.budget") && !Contains("recompute.granularity: full"));
}

TEST_CASE("limits of a search that contradict the recipe or the card are refused before it begins") {
  const TempRun t;
  const std::string search = "plan tiny.yaml device=cuda --profile h100 --search --gpus 8 ";
  const auto refused = [&](const std::string& rest, const std::string& why) {
    const Outcome o = t.sh(search + rest);
    INFO(rest << "\n" << o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains(why));
  };
  refused(
      "--max-tensor 1 parallel.tensor=2",
      "--max-tensor 1: command line sets parallel.tensor to 2, and what a recipe sets stays; nearest valid "
      "value: 2");
  refused("--keep-free 80GiB", "--keep-free 80GiB: a card has 74.5 GiB, and nothing would be left");
  refused("--keep-free 4", "--keep-free 4: must be an amount of memory, 0 or 1MiB and more");
  refused("--global-batch 64..8", "nearest valid value: 8..64");
  refused(
      "parallel.tensor=2 parallel.pipeline=2 parallel.data=4",
      "--gpus 8: what the recipe sets (parallel.tensor 2, parallel.pipeline 2, parallel.data 4) makes groups "
      "of 16 ranks; nearest valid value: 16");
}

TEST_CASE("a search says what prices it and what a card has, in text and JSON") {
  const TempRun t;
  const std::string search =
      "plan tiny.yaml device=cuda --profile h100 --search --gpus 2 parallel.tensor=1 parallel.pipeline=1";
  const Outcome text = t.sh(search + " --explain 1 2");
  INFO(text.text);
  CHECK_THAT(text.text, Contains("\npriced by the profile h100, built in; a card has 74.5 GiB\n") &&
                            Contains("figures of the profile: ") && Contains("\n  outside the arena "));
  const auto j = nlohmann::json::parse(t.sh(search + " --json").text);
  CHECK(j["profile"] == "h100, built in");
  CHECK(j["device_memory_bytes"] == 80000000000);
  CHECK(!j["figures"].empty());
}

TEST_CASE("64 cards are eight nodes with a network, and the plan says that this is assumed") {
  const TempRun t;
  const std::string cards =
      " device=cuda parallel.data=64 train.micro_batch_size=1 train.global_batch_size=64 ";
  const Outcome text = t.sh("plan tiny.yaml --profile h100" + cards);
  INFO(text.text);
  CHECK(text.code == 0);
  CHECK_THAT(text.text, Contains("\na node: 8 H100, assumed; launch.ranks_per_node says otherwise\n") &&
                            Contains("over 8 nodes") && Contains("between nodes: 2880.0 Gbit/s"));
  const auto j = nlohmann::json::parse(t.sh("plan tiny.yaml --json --profile h100" + cards).text);
  CHECK(j["node"] == nlohmann::json({{"cards", 8}, {"card", "H100"}, {"assumed", true}}));
  CHECK(j["rank_map"]["ranks_per_node"] == 8);
  CHECK(j["ranks"][0]["communication"][0]["network_bytes"] > 0);
  const auto one = nlohmann::json::parse(
      t.sh("plan tiny.yaml --json --profile h100 launch.ranks_per_node=64" + cards).text);
  CHECK_FALSE(one.contains("node"));
  CHECK(one["ranks"][0]["communication"][0]["network_bytes"] == 0);
  CHECK(j["step_seconds"] > one["step_seconds"]);
  const Outcome script = t.sh("slurm tiny.yaml" + cards);
  INFO(script.text);
  CHECK_THAT(script.text, Contains("#SBATCH --nodes=8\n") && Contains("#SBATCH --gpus-per-node=8\n") &&
                              Contains("# A node: 8 ") &&
                              Contains(", assumed; --ranks-per-node says otherwise"));
}

TEST_CASE("slurm writes no script for what does not fit, and one with --force") {
  const TempRun t;
  const Outcome refused = t.sh("slurm tiny.yaml device=cuda --output job.sbatch" + kTooLarge);
  INFO(refused.text);
  CHECK(refused.code == 78);
  CHECK_THAT(refused.text, Contains("the plan exceeds the GPU's memory: a rank needs ") &&
                               Contains("--force goes on all the same"));
  CHECK_FALSE(std::filesystem::exists(t.folder() + "/job.sbatch"));
  CHECK(t.sh("slurm tiny.yaml device=cuda --output job.sbatch --force" + kTooLarge).code == 0);
  CHECK(std::filesystem::exists(t.folder() + "/job.sbatch"));
  // The nodes of a cluster are not this host.
  CHECK(t.sh("slurm tiny.yaml device=cpu train.micro_batch_size=1000000 train.global_batch_size=2000000")
            .code == 0);
}

TEST_CASE("a plan needs no data.train, and what is started from it does") {
  const TempRun t;
  const Outcome plan = t.sh("plan tiny.yaml ~data.train");
  INFO(plan.text);
  CHECK(plan.code == 0);
  // The bytes of the same recipe with data.
  const auto total = [&](const std::string& more) {
    return nlohmann::json::parse(
        t.sh("plan tiny.yaml --json " + more).text)["ranks"][0]["memory_bytes"]["total"];
  };
  CHECK(total("~data.train") == total(""));
  for (const char* command : {"recipe check", "slurm", "run --dry-run", "run"}) {
    const Outcome o = t.sh(command + std::string(" tiny.yaml ~data.train"));
    INFO(command << "\n" << o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains("data.train = [] (default): a run needs token files"));
  }
}

TEST_CASE("slurm takes --profile as plan does: the card is the profile's") {
  const TempRun t;
  const Outcome a100 = t.sh("slurm tiny.yaml --profile a100");
  INFO(a100.text);
  CHECK(a100.code == 0);
  CHECK_THAT(a100.text, Contains("note: device: auto is planned as cuda, which the profile a100 is of") &&
                            Contains("steps, by the profile a100, built in; and half more") &&
                            Contains("#SBATCH --gpus-per-node=2\n"));
  const Outcome wrong = t.sh("slurm tiny.yaml --profile a100 device=cpu");
  CHECK(wrong.code == 64);
  CHECK_THAT(wrong.text, Contains("--profile a100: has the rates of a GPU, and the recipe has device: cpu"));
  const Outcome none = t.sh("slurm tiny.yaml --profile h1000");
  CHECK(none.code == 64);
  CHECK_THAT(none.text, Contains("did you mean h100?"));
  // Between 74.5 GiB and 131.3 GiB: one card has room, and the other does not.
  const std::string between =
      " train.micro_batch_size=700000 train.global_batch_size=1400000 data.seq_length=32 device=cuda";
  const Outcome small = t.sh("slurm tiny.yaml --profile h100" + between),
                large = t.sh("slurm tiny.yaml --profile h200" + between);
  INFO(small.text << large.text);
  CHECK(small.code == 78);
  CHECK(large.code == 0);
}

TEST_CASE("a cluster file lays out plan and slurm, by --cluster or by the recipe") {
  const TempRun t;
  const auto write = [&](const std::string& network) {
    std::ofstream(t.folder() + "/ours.yaml")
        << "format: ltrain.cluster.v1\nname: ours\nprofile: h100\nnodes: 4\ngpus_per_node: 4\nnetwork: "
        << network << "\n";
  };
  write("ib-8x400g");
  const std::string batch = " train.micro_batch_size=1 train.global_batch_size=16 ";
  const auto plan = [&](const std::string& more) {
    const Outcome o = t.sh("plan tiny.yaml --json" + batch + more + " 2>/dev/null");
    INFO(o.text);
    REQUIRE(o.code == 0);
    return nlohmann::json::parse(o.text);
  };
  const auto all = plan("--cluster ours.yaml parallel.data=-1");  // one rank a card
  CHECK(all["world"] == 16);
  CHECK(all["node"] == nlohmann::json({{"cards", 4}, {"card", "H100"}, {"assumed", false}}));
  CHECK(all["network_given"] == true);
  CHECK(plan("cluster=ours.yaml device=cuda parallel.data=-1")["step_seconds"] == all["step_seconds"]);
  CHECK_FALSE(all["figures"].empty());
  write("ethernet-100g");
  CHECK(plan("--cluster ours.yaml parallel.data=-1")["step_seconds"] > all["step_seconds"]);
  const Outcome script = t.sh("slurm tiny.yaml --cluster ours.yaml parallel.data=16" + batch);
  INFO(script.text);
  CHECK(script.code == 0);
  CHECK_THAT(script.text, Contains("#SBATCH --nodes=4\n") && Contains("#SBATCH --gpus-per-node=4\n") &&
                              Contains("# A node: 4 H100, by ours.yaml"));
  const auto refused = [&](const std::string& more, const std::string& text) {
    const Outcome o = t.sh("plan tiny.yaml" + batch + more);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains(text));
  };
  refused("--cluster ours.yaml parallel.data=32 train.global_batch_size=32",
          "32 ranks: ours, 4 nodes of 4 h100, has 16 cards; nearest valid value: 16 ranks");
  std::ofstream(t.folder() + "/none.yaml") << "nodes: 4\n";
  refused("--cluster none.yaml",
          "none.yaml:1: must have format: ltrain.device.v1 (a card), or format: "
          "ltrain.cluster.v1 (nodes of a card and their network)");
  refused("--cluster ours.yaml device=cuda launch.ranks_per_node=8 parallel.data=8",
          "launch.ranks_per_node = 8: ours");
  refused("--cluster ours.yaml --profile h100", "set only one of --profile h100 and --cluster ours.yaml");
  refused("--cluster h100", "cluster h100: is no cluster file");
  write("ethernet-10g");
  refused("--cluster ours.yaml", "ours.yaml:6:10: network = ethernet-10g: must be one of");
}

TEST_CASE("plan --html and --svg write drawings beside the plan, and refuse what they do not draw") {
  const TempRun t;
  const std::string run = "plan tiny.yaml device=cuda --profile h100 --world 4 parallel.pipeline=2";
  const Outcome plain = t.sh(run), drawn = t.sh(run + " --html page.html --svg drawings");
  INFO(drawn.text);
  CHECK(drawn.code == 0);
  CHECK(drawn.text == plain.text);  // the terminal gets the same
  CHECK_THAT(read_file(t.folder() + "/page.html"),
             Catch::StartsWith("<!DOCTYPE html>") && Catch::EndsWith("</html>\n"));
  for (const char* name : {"memory", "timeline", "detail", "schedule", "map"}) {
    const std::string svg = read_file(t.folder() + "/" + std::string("drawings/") + name + ".svg");
    CHECK_THAT(svg, Catch::StartsWith("<svg ") && Catch::EndsWith("</svg>\n"));
    CHECK_THAT(read_file(t.folder() + "/page.html"), Contains(svg));
  }
  const Outcome search =
      t.sh("plan tiny.yaml device=cuda --profile h100 --search --gpus 4 --html search.html");
  INFO(search.text);
  CHECK(search.code == 0);
  CHECK_THAT(read_file(t.folder() + "/search.html"),
             Contains("<h2 id=\"search\">") && Contains("<h2 id=\"memory\">"));
  const Outcome wrong = t.sh(run + " --schedule --html page.html");
  CHECK(wrong.code == 64);
  CHECK_THAT(wrong.text, Contains("--html and --svg draw a plan or a --search"));
  const Outcome nowhere = t.sh(run + " --html missing/page.html");
  CHECK(nowhere.code != 0);
  CHECK_THAT(nowhere.text, Contains("missing/page.html: cannot be written"));
}

TEST_CASE("plan --trainer prices a plan and a search as another trainer runs them, and says so") {
  const TempRun t;
  const std::string plan = "plan tiny.yaml device=cuda precision=bf16 --profile h100 --json";
  const auto ours = nlohmann::json::parse(t.sh(plan).text);
  const auto theirs = nlohmann::json::parse(t.sh(plan + " --trainer llm-foundry-2023").text);
  CHECK(theirs["profile"] == "h100, built in, as run by llm-foundry-2023");
  CHECK(theirs["step_seconds"] > ours["step_seconds"]);
  CHECK(theirs["ranks"][0]["memory_bytes"] == ours["ranks"][0]["memory_bytes"]);
  bool named = false;
  for (const auto& figure : theirs["figures"]) named = named || figure["figure"] == "trainer.traffic";
  CHECK(named);
  const std::string search =
      "plan tiny.yaml device=cuda precision=bf16 --profile h100 --json --search --gpus 2";
  const auto fast = nlohmann::json::parse(t.sh(search).text),
             slow = nlohmann::json::parse(t.sh(search + " --trainer llm-foundry-2023").text);
  CHECK(slow["found"][0]["step_seconds"] > fast["found"][0]["step_seconds"]);
  const Outcome other = t.sh("plan tiny.yaml device=cuda --profile h100 --trainer llm-fondry");
  CHECK(other.code == 64);
  CHECK_THAT(other.text, Contains("trainer llm-fondry: there is no such file"));
}
