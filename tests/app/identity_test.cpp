// One job has one recipe and one folder: ranks with another recipe, of another job, and second runs into a
// folder are refused, by name, before anything is trained or written.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>

#include "base/time_scale.h"
#include "tests/app/run_program.h"
#include "tests/support/free_port.h"
#include "tests/support/seconds_since.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// The shell's words for rank `rank` of two, as another launcher would start it; its output goes to NAME.
std::string start_rank(int rank, int port, const std::string& arguments, const std::string& name,
                       const std::string& variables = "") {
  return fmt::format(
      "RANK={} WORLD_SIZE=2 LOCAL_RANK={} LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={} {} {} run "
      "tiny.yaml {} > {} 2>&1 & {}=$!\n",
      rank, rank, port, variables, LTRAIN_BINARY, arguments, name, name);
}

/// Exit code of each command, as shell variables at the end.
std::string wait_for(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& n : names) out += fmt::format("wait ${}; echo \"{}=$?\"\n", n, n);
  return out;
}

/// name -> SHA-256 of all files of a run.
std::string fingerprint(const TempRun& t, const std::string& run) {
  return t.shell("cd " + run + " && find . -type f | sort | xargs sha256sum && find . | sort").text;
}

}  // namespace

TEST_CASE("ranks of one job with different recipes: refused on all of them, with the key and both values") {
  TempRun t;
  REQUIRE(t.build().code == 0);
  struct Case {
    const char *setting, *told;
  };
  for (const Case& c :
       {Case{"seed=2", "seed: 1234 on rank 0 on host"}, Case{"optimizer.lr=0.1", "optimizer.lr: 0.001 on"},
        Case{"data.train.0.path=./text-train", "data.train: [{path: text-train"},
        Case{"train.clip_grad=0", "train.clip_grad: 1.0 on"},
        Case{"train.train_steps=20", "train.train_steps: 6 on"},
        Case{"checkpoint.save_interval=3", "checkpoint.save_interval: 2 on"},
        Case{"model.num_hidden_layers=3", "model.num_hidden_layers: 2 on"},
        Case{"output_dir=other", "output_dir: run on"}}) {
    const auto begin = std::chrono::steady_clock::now();
    const int port = free_port();
    const Outcome o = t.shell(start_rank(0, port, "", "zero") + start_rank(1, port, c.setting, "one") +
                              wait_for({"zero", "one"}));
    const std::string zero = read_file(t.folder() + "/zero"), one = read_file(t.folder() + "/one");
    INFO(c.setting << "\n" << o.text << zero << one);
    CHECK_THAT(o.text, Contains("zero=64") && Contains("one=64"));
    for (const std::string& text : {zero, one})
      CHECK_THAT(text, Contains(c.told) && Contains("on rank 1 on host"));
    CHECK_FALSE(std::filesystem::exists(t.folder() + "/run/metrics.jsonl"));  // no step was made
    CHECK(seconds_since(begin) < 15 * ltrain::time_scale());
  }
  // Settings of one node may differ.
  const int port = free_port();
  const Outcome o = t.shell(start_rank(0, port, "", "zero") +
                            start_rank(1, port, "launch.threads_per_rank=2 launch.interface=lo", "one") +
                            wait_for({"zero", "one"}));
  INFO(read_file(t.folder() + "/zero") << read_file(t.folder() + "/one"));
  CHECK_THAT(o.text, Contains("zero=0") && Contains("one=0"));
}

TEST_CASE("launchers of two nodes with different recipes: refused on both") {
  TempRun t;
  const auto node = [&](int n, int port, const std::string& arguments, const std::string& name) {
    return fmt::format(
        "PET_NNODES=2 PET_NODE_RANK={} PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT={} {} "
        "run tiny.yaml {} > {} 2>&1 & {}=$!\n",
        n, port, LTRAIN_BINARY, arguments, name, name);
  };
  const int port = free_port();
  const Outcome two =
      t.shell(node(0, port, "", "zero") + node(1, port, "seed=5", "one") + wait_for({"zero", "one"}));
  const std::string zero = read_file(t.folder() + "/zero"), one = read_file(t.folder() + "/one");
  INFO(two.text << zero << one);
  CHECK_THAT(two.text, Contains("zero=64") && Contains("one=64"));
  CHECK_THAT(zero, Contains("seed: 1234 on the launcher on host") && Contains("5 on rank 1 on host"));
  const int again = free_port();
  const Outcome same =
      t.shell(node(0, again, "", "zero") + node(1, again, "", "one") + wait_for({"zero", "one"}));
  INFO(read_file(t.folder() + "/zero") << read_file(t.folder() + "/one"));
  CHECK_THAT(same.text, Contains("zero=0") && Contains("one=0"));
  CHECK(std::filesystem::exists(t.folder() + "/run/logs/rank-00001.log"));
}

TEST_CASE("two jobs with one MASTER_PORT train apart, each its own recipe") {
  TempRun t;
  const std::string a = "output_dir=a train.train_steps=4", b = "output_dir=b seed=2 train.train_steps=4";
  // Alone, for what each must give.
  REQUIRE(t.sh("run tiny.yaml train.train_steps=4 output_dir=a-alone").code == 0);
  REQUIRE(t.sh("run tiny.yaml train.train_steps=4 output_dir=b-alone seed=2").code == 0);
  REQUIRE(t.metric("lm_loss", "a-alone") != t.metric("lm_loss", "b-alone"));
  const int port = free_port();
  // A's rank 1 comes last: B's finds A's rank 0 first.
  const Outcome o = t.shell(start_rank(0, port, a, "a0") + "sleep 0.5\n" + start_rank(0, port, b, "b0") +
                            start_rank(1, port, b, "b1") + "sleep 1\n" + start_rank(1, port, a, "a1") +
                            wait_for({"a0", "a1", "b0", "b1"}));
  std::string all = o.text;
  for (const char* name : {"a0", "a1", "b0", "b1"}) all += read_file(t.folder() + "/" + name);
  INFO(all);
  CHECK_THAT(o.text, Contains("a0=0") && Contains("a1=0") && Contains("b0=0") && Contains("b1=0"));
  CHECK(t.metric("lm_loss", "a") == t.metric("lm_loss", "a-alone"));
  CHECK(t.metric("lm_loss", "b") == t.metric("lm_loss", "b-alone"));
}

TEST_CASE("a launcher's ranks have the recipe that it has checked, whatever the file is by then") {
  TempRun t;
  // In the ranks /dev/stdin is another file.
  const Outcome o = t.shell(std::string(LTRAIN_BINARY) + " run /dev/stdin train.train_steps=2 < tiny.yaml");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK(t.metric("lm_loss").size() == 2);
  // A descriptor of somebody else's is not believed.
  for (const char* fd : {"0", "-1", "x", "99", "3"}) {
    const Outcome wrong = t.sh(
        "run tiny.yaml", fmt::format("LTRAIN_RANK=0 LTRAIN_WORLD_SIZE=1 LTRAIN_TOKEN=t "
                                     "LTRAIN_COORDINATOR=127.0.0.1:1 LTRAIN_LAUNCHER=1 LTRAIN_RECIPE_FD={}",
                                     fd));
    INFO(fd << wrong.text);
    CHECK(wrong.code == 64);
    CHECK_THAT(wrong.text, Contains("LTRAIN_RECIPE_FD"));
  }
}

TEST_CASE(
    "a folder belongs to one run from its first byte to its last: a second one is refused and changes "
    "nothing") {
  TempRun t;
  const std::string saves = GENERATE("", " checkpoint.save_interval=0 checkpoint.save_at_end=false");
  // The first rests in its third step.
  const std::string settings = "tiny.yaml train.eval_interval=0" + saves;
  const Outcome started =
      t.shell("LTRAIN_FAULT=train.step:*:3:sleep=" + std::to_string(int(8000 * ltrain::time_scale())) + " " +
              LTRAIN_BINARY + " run " + settings +
              " > first 2>&1 & echo $! > pid\n"
              "for i in $(seq 600); do grep -q '\"step\":2[,}]' run/metrics.jsonl 2>/dev/null && exit 0; "
              "sleep 0.05; done; exit 1");
  REQUIRE(started.code == 0);
  t.shell("sleep 0.5");  // a save in the background
  const std::string before = fingerprint(t, "run");
  CHECK_THAT(before, Contains("./recipe.yaml") && Contains("./logs/rank-00001.log"));
  const int port = free_port();
  std::vector<Outcome> seconds{
      t.sh("run " + settings + " seed=7"), t.sh("run " + settings),
      t.sh("run " + settings + " parallel.data=1 seed=9",
           fmt::format("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT={}", port))};
  const Outcome ranks = t.shell(start_rank(0, port, "seed=8" + saves, "zero") +
                                start_rank(1, port, "seed=8" + saves, "one") + wait_for({"zero", "one"}));
  CHECK(fingerprint(t, "run") == before);
  for (const Outcome& o : seconds) {
    INFO(o.text);
    CHECK(o.code == 73);
    CHECK_THAT(o.text, Contains("run: another run uses this folder (process "));
  }
  INFO(ranks.text << read_file(t.folder() + "/zero") << read_file(t.folder() + "/one"));
  CHECK_THAT(ranks.text, Contains("zero=73") && Contains("one=73"));
  // Readers do not ask.
  if (saves.empty()) CHECK(t.sh("eval run --threads 1").code == 0);
  const Outcome end = t.shell("while kill -0 $(cat pid) 2>/dev/null; do sleep 0.1; done; tail -n 1 first");
  CHECK_THAT(end.text, Contains("done: 6 steps"));
  CHECK(t.metric("lm_loss").size() == 6);
  CHECK(t.sh("run " + settings).code == 0);  // the folder is free again
}

TEST_CASE("a folder of a run whose processes were killed is free") {
  TempRun t;
  const Outcome o =
      t.shell(std::string(LTRAIN_BINARY) +
              " run tiny.yaml train.train_steps=100000 train.eval_interval=0 > first 2>&1 & p=$!\n"
              "for i in $(seq 600); do grep -q '\"step\":5[,}]' run/metrics.jsonl 2>/dev/null && break; "
              "sleep 0.05; done\n"
              "kill -9 $p; wait $p\n"
              "for i in $(seq 100); do " +
              LTRAIN_BINARY +
              " run tiny.yaml train.train_steps=7 > second 2>&1 && exit 0; grep -q 'uses this folder' second "
              "|| exit 1; sleep 0.1; done; exit 2");
  INFO(o.text << read_file(t.folder() + "/second"));
  CHECK(o.code == 0);
}

TEST_CASE("a second job of two nodes into one folder: none of its launchers writes there") {
  TempRun t;
  const int port = free_port();
  const auto node = [&](int n, const std::string& name, const std::string& variables) {
    return fmt::format(
        "{} PET_NNODES=2 PET_NODE_RANK={} PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT={} "
        "{} run tiny.yaml train.eval_interval=0 > {} 2>&1 & {}=$!\n",
        variables, n, port, LTRAIN_BINARY, name, name);
  };
  const std::string sleep =
      fmt::format("LTRAIN_FAULT=train.step:*:3:sleep={}", int(6000 * ltrain::time_scale()));
  const Outcome o = t.shell(node(0, "a0", sleep) + node(1, "a1", sleep) +
                            "for i in $(seq 600); do grep -q '\"step\":2[,}]' run/metrics.jsonl 2>/dev/null "
                            "&& break; sleep 0.05; done\n"
                            "sleep 0.5; (cd run && find . -type f | sort | xargs sha256sum) > before\n" +
                            node(0, "b0", "LTRAIN_JOIN_TIMEOUT=3") + node(1, "b1", "LTRAIN_JOIN_TIMEOUT=3") +
                            "wait $b0; echo \"b0=$?\"; wait $b1; echo \"b1=$?\"; (cd run && find . -type f | "
                            "sort | xargs sha256sum) > after\n" +
                            wait_for({"a0", "a1"}));
  std::string all = o.text;
  for (const char* name : {"a0", "a1", "b0", "b1"})
    all += std::string(name) + ":\n" + read_file(t.folder() + "/" + name);
  INFO(all);
  CHECK(read_file(t.folder() + "/before") == read_file(t.folder() + "/after"));
  CHECK_THAT(read_file(t.folder() + "/before"), Contains("rank-00001.log"));
  CHECK_THAT(o.text, Contains("a0=0") && Contains("a1=0") && Contains("b0=73") && Contains("b1=71"));
  CHECK_THAT(read_file(t.folder() + "/b1"), Contains("rank 1 joined twice"));
}
