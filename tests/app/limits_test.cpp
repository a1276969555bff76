// The surroundings of a run: output that nobody reads, nohup, limits of the shell. The run ends when asked
// to, goes on otherwise, and names the limit that it ran into.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Waits, a minute at most, until a run's metrics have so many steps.
std::string until_step(int step) {
  return fmt::format(
      "for i in $(seq 1200); do grep -q '\"step\":{}[,}}]' run/metrics.jsonl 2>/dev/null && break; sleep "
      "0.05; done\n",
      step);
}

constexpr const char* kMuchOutput =
    "tiny.yaml train.train_steps=1000000 train.eval_interval=0 checkpoint.save_interval=0 "
    "train.log_interval=1 log.format=text";

}  // namespace

TEST_CASE("output that nobody reads stops neither the run nor its end") {
  TempRun t;
  const std::string signal = GENERATE("TERM", "INT");
  const bool launched = GENERATE(true, false);
  // A pipe holds 64 KiB, about 600 of these lines.
  const std::string start =
      launched ? fmt::format("{} run {} > pipe 2>&1 & p=$!\n", LTRAIN_BINARY, kMuchOutput)
               : fmt::format(
                     "export LTRAIN_COORDINATOR=127.0.0.1:$(( 20000 + $$ % 10000 ))\n"
                     "{0} RANK=1 LOCAL_RANK=1 {1} run {2} > other 2>&1 &\n"
                     "{0} RANK=0 LOCAL_RANK=0 {1} run {2} > pipe 2>&1 & p=$!\n",
                     "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1", LTRAIN_BINARY, kMuchOutput);
  const Outcome o =
      t.shell_with_jobs("mkfifo pipe; sleep 300 < pipe & reader=$!\n" + start + until_step(1500) +
                        "grep -c step run/metrics.jsonl > steps\n"
                        "kill -" +
                        signal + " $p; begin=$(date +%s); wait $p; echo code $?\n" +
                        "echo seconds $(( $(date +%s) - begin )); kill $reader");
  INFO(signal << launched << "\n" << o.text);
  CHECK(std::stoi(read_file(t.folder() + "/steps")) >= 1500);  // it went on when the pipe was full
  CHECK_THAT(o.text, Contains("code 75"));
  const size_t at = o.text.find("seconds ");
  REQUIRE(at != std::string::npos);
  CHECK(std::stoi(o.text.substr(at + 8)) <= 15);
}

TEST_CASE("a run goes on and saves whatever its standard input, output and error are") {
  TempRun t;
  for (const std::string data : {"1", "2"})
    for (const std::string how : {"<&-", ">&-", "2>&-", "<&- >&- 2>&-", "> /dev/full", "> /dev/full 2>&1"}) {
      const Outcome o =
          t.shell(fmt::format("{} run tiny.yaml parallel.data={} {}", LTRAIN_BINARY, data, how));
      INFO(data << " ranks, " << how << "\n" << o.text);
      CHECK(o.code == 0);
      CHECK(std::filesystem::exists(t.folder() + "/run/checkpoints/step-00000006/COMMIT"));
      CHECK(t.metric("lm_loss").size() == 6);
      std::filesystem::remove_all(t.folder() + "/run");
    }
}

TEST_CASE("a folder of the user that cannot be read does not matter to a run that writes elsewhere") {
  TempRun t;
  // Permissions do not stop root, so a file stands where the folder should be.
  const Outcome o = t.shell(
      fmt::format("touch nohome; HOME=$PWD/nohome/x XDG_CACHE_HOME= {} run tiny.yaml", LTRAIN_BINARY));
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK(std::filesystem::exists(t.folder() + "/run/checkpoints/step-00000006/COMMIT"));
}

TEST_CASE("a signal that whoever started the run ignores is ignored: nohup") {
  TempRun t;
  const bool ignored = GENERATE(true, false);
  const Outcome o = t.shell_with_jobs(fmt::format(
      "{} {} run tiny.yaml train.train_steps=1000 train.eval_interval=0 checkpoint.save_interval=0 "
      "checkpoint.save_at_end=false > out 2>&1 & p=$!\n{}kill -HUP $p; wait $p; echo code $?\n",
      ignored ? "nohup" : "env", LTRAIN_BINARY, until_step(20)));
  const std::string out = read_file(t.folder() + "/out");
  INFO(o.text << out);
  CHECK_THAT(o.text, Contains(ignored ? "code 0" : "code 75"));
  CHECK_THAT(out, Contains(ignored ? "done: 1000 steps" : "SIGHUP"));
}

TEST_CASE("a limit of the shell is named, with what raises it, and is no defect of ltrain") {
  TempRun t;
  struct Case {
    const char *limit, *told;
    int code;
  };
  const Case c = GENERATE(Case{"-n 10", "ulimit -n", 64}, Case{"-v 150000", "ulimit -v", 64},
                          Case{"-f 2", "ulimit -f", 73});
  const Outcome o = t.shell(fmt::format("(ulimit {}; {} run tiny.yaml)", c.limit, LTRAIN_BINARY));
  INFO(c.limit << "\n" << o.text);
  CHECK(o.code == c.code);
  CHECK_THAT(o.text, Contains(c.told));
  CHECK_THAT(o.text, !Contains("internal error") && !Contains("start again"));
}

TEST_CASE(
    "a file that outgrows the shell's limit in the middle of a run: training goes on, and the limit is "
    "named") {
  TempRun t;
  const auto run = [&](const char* transport) {
    return t.shell(fmt::format("bash -c 'ulimit -f 200; LTRAIN_TRANSPORT={} {} run tiny.yaml'", transport,
                               LTRAIN_BINARY));
  };
  // A shard of a checkpoint is larger than 200 KiB; no other file of the run is.
  const Outcome gloo = run("gloo");
  INFO(gloo.text);
  CHECK(gloo.code == 73);
  CHECK(t.metric("lm_loss").size() == 6);
  CHECK_THAT(gloo.text, Contains("WARNING: the checkpoint of step 2 was not saved; training goes on") ||
                            Contains("WARNING: the checkpoint of step 4 was not saved; training goes on"));
  CHECK_THAT(gloo.text, Contains("the last checkpoint could not be saved") && Contains("File too large") &&
                            Contains("a file may have 204800 bytes (ulimit -f unlimited raises it)"));
  CHECK_THAT(gloo.text, !Contains("internal error") && !Contains("start again"));
  // Memory that ranks share is a file too: it is refused before a step, with what raises the limit.
  const Outcome shared = run("shm");
  INFO(shared.text);
  CHECK(shared.code == 64);
  CHECK_THAT(shared.text, Contains("no shared memory of") && Contains("(ulimit -f unlimited raises it)") &&
                              Contains("LTRAIN_TRANSPORT=gloo does without"));
}

TEST_CASE("more ranks than this host can start are refused before a process is started") {
  TempRun t;
  const auto with = [&](const std::string& command, int ranks, const char* more = "") {
    return t.shell(
        fmt::format("ulimit -n 1024; {} {} tiny.yaml parallel.data={} train.global_batch_size={} {}",
                    LTRAIN_BINARY, command, ranks, 2 * ranks, more));
  };
  for (const char* command : {"recipe check", "run"}) {
    const Outcome o = with(command, 1024);
    INFO(command << "\n" << o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text,
               Contains("parallel.data = 1024: 1024 ranks on one host: this one can start at most 336: a "
                        "launcher opens 3 files for each and may open 1024 (ulimit -n)") &&
                   Contains("Set launch.ranks_per_node"));
    CHECK(!std::filesystem::exists(t.folder() + "/run"));
  }
  CHECK(with("recipe check", 336).code == 0);
  CHECK(with("recipe check", 337).code == 64);
  // On a cluster, the ranks of a node count.
  CHECK(with("recipe check", 1024, "launch.ranks_per_node=8").code == 0);
}

TEST_CASE("however few files a process may open, the run ends well or names the limit") {
  TempRun t;
  int named = 0;
  for (int files = 6; files <= 34; files += 2) {
    const Outcome o =
        t.shell(fmt::format("(ulimit -n {}; {} run tiny.yaml train.train_steps=2)", files, LTRAIN_BINARY));
    INFO(files << "\n" << o.text);
    CHECK((o.code == 0 || o.code == 64));
    if (o.code == 64) CHECK_THAT(o.text, Contains("ulimit -n"));
    named += o.code == 64;
    std::filesystem::remove_all(t.folder() + "/run");
  }
  CHECK(named >= 3);
}
