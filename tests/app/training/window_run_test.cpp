// data.shuffle_window: a run trains while its later token files are made.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr int kFiles = 12;

/// part-00.jsonl, ..., each of which becomes a shard of its own: some 31 samples.
void write_parts(const TempRun& t) {
  for (int file = 0; file < kFiles; ++file) {
    std::ofstream out(t.folder() + "/part-" + std::to_string(file / 10) + std::to_string(file % 10) +
                      ".jsonl");
    for (int i = 0; i < 32; ++i)
      out << nlohmann::json{{"text", "file " + std::to_string(file) + " says " + std::to_string(i * i) +
                                         " in its line " + std::to_string(i)}}
                 .dump()
          << "\n";
  }
}

/// 40 steps of 8 samples: five of the six windows.
std::string windowed(const std::string& name, const std::string& cache, const std::string& more = "") {
  return "run tiny.yaml data.eval=[] train.eval_interval=0 'data.train=[part-*.jsonl]' data.shard_mib=0.001 "
         "data.shuffle_window=2 train.train_steps=40 checkpoint.save_interval=10 data.cache=" +
         cache + " output_dir=" + name + " " + more;
}

/// Makes all token files of a run, which may end before the last ones that it does not need.
void make_all(const TempRun& t, const std::string& run) {
  REQUIRE(t.sh(run + " data.shuffle_window=0 --steps=1 output_dir=all").code == 0);
  fs::remove_all(t.folder() + "/all");
}

/// Names of the token files of a folder.
std::vector<std::string> made_files(const TempRun& t, const std::string& cache) {
  std::vector<std::string> names;
  if (fs::exists(t.folder() + "/" + cache))
    for (const auto& entry : fs::directory_iterator(t.folder() + "/" + cache))
      if (entry.path().extension() == ".idx") names.push_back(entry.path().stem().string());
  return names;
}

/// Name of the token files of part-08.jsonl, the first of the fifth window: those of a run with this file
/// alone.
std::string ninth_file(const TempRun& t) {
  make_all(t, windowed("all", "alone", "'data.train=[part-08.jsonl]'"));
  const std::vector<std::string> names = made_files(t, "alone");
  REQUIRE(names.size() == 1);
  return names[0];
}

/// Makes the parts, and the run `a` with all token files. Returns ninth_file().
std::string write_parts_and_run(const TempRun& t) {
  write_parts(t);
  make_all(t, windowed("a", "warm"));
  REQUIRE(t.sh(windowed("a", "warm")).code == 0);
  return ninth_file(t);
}

/// Largest difference of the losses of two runs of 40 steps.
double largest_difference(const TempRun& t, const std::string& a, const std::string& b) {
  const std::vector<double> x = t.values("lm_loss", a), y = t.values("lm_loss", b);
  if (x.size() != 40 || y.size() != 40) return 1e9;
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) most = std::max(most, std::abs(x[i] - y[i]));
  return most;
}

/// Shell commands that keep the lock of a shard, as another builder would, until the output of a run has a
/// text. The file `held` says that it had it in time.
std::string hold(const std::string& lock, const std::string& text, const std::string& output) {
  return "mkdir -p $(dirname " + lock + "); ( flock 9; touch locked; for i in $(seq 600); do grep -q '" +
         text + "' " + output + " 2>/dev/null && touch held && break; sleep 0.05; done ) 9>" + lock +
         " & for i in $(seq 600); do [ ! -e locked ] || break; sleep 0.05; done; ";
}

/// Shell commands that start the two ranks of a run as torchrun does, on one node or on two, and print
/// "codes A B".
std::string as_torchrun(const std::string& run, int nodes) {
  std::string commands = "port=$((20000 + $$ % 20000)); ";
  for (int rank = 0; rank < 2; ++rank)
    commands += fmt::format(
        "RANK={} WORLD_SIZE=2 LOCAL_RANK={} LOCAL_WORLD_SIZE={} GROUP_RANK={} MASTER_ADDR=127.0.0.1 "
        "MASTER_PORT=$port {} {} & p{}=$!; ",
        rank, nodes == 1 ? rank : 0, 2 / nodes, nodes == 1 ? 0 : rank, program(), run, rank);
  return commands + "wait $p0; a=$?; wait $p1; echo codes $a $?; ";
}

}  // namespace

TEST_CASE("run: with a shuffle window, samples do not depend on what exists, on ranks or on a resume") {
  TempRun t;
  write_parts(t);
  const Outcome first = t.sh(windowed("a", "warm"));
  INFO(first.text);
  REQUIRE(first.code == 0);
  const std::vector<std::string> losses = t.metric("lm_loss", "a");
  REQUIRE(losses.size() == 40);
  const Outcome again = t.sh(windowed("b", "warm"));
  CHECK_THAT(again.text, !Contains("tokenising"));
  CHECK(t.metric("lm_loss", "b") == losses);
  for (const std::string ranks : {"1", "4"}) {
    INFO("ranks " << ranks);
    REQUIRE(t.sh(windowed("c" + ranks, "warm", "parallel.data=" + ranks)).code == 0);
    CHECK(largest_difference(t, "c" + ranks, "a") < 1e-5);  // sums over ranks have another order
  }
  REQUIRE(t.sh(windowed("d", "warm", "--steps=20")).code == 0);
  REQUIRE(t.sh(windowed("d", "cold")).code == 0);
  CHECK(t.metric("lm_loss", "d") == losses);
  // Another window is another order, and a resume refuses it.
  const Outcome other = t.sh(windowed("d", "warm", "data.shuffle_window=3 train.train_steps=50"));
  CHECK(other.code == 64);
  CHECK_THAT(other.text, Contains("data.shuffle_window 2 -> 3"));
  REQUIRE(t.sh(windowed("e", "warm", "data.shuffle_window=0")).code == 0);
  CHECK(largest_difference(t, "e", "a") > 1e-3);
}

TEST_CASE("run: with a shuffle window, a mix with stages, copies and whole documents has one order") {
  TempRun t;
  write_parts(t);
  const auto mix = [](const std::string& cache) {
    return windowed("m", cache,
                    "'data.train=[{path: part-*.jsonl, weight: 0.7}, {path: part-0*.jsonl, weight: 0.3}]' "
                    "'data.stages=[{from_step: 12, train: [{path: part-*.jsonl, weight: 0.4}, {path: "
                    "part-1*.jsonl, weight: 0.6}]}]' data.deduplicate=exact data.packing=best_fit");
  };
  const Outcome cold = t.sh(mix("cache"));
  INFO(cold.text);
  REQUIRE(cold.code == 0);
  CHECK_THAT(cold.text, Contains("tokenising part-*.jsonl") && Contains("tokenising part-1*.jsonl"));
  const std::vector<std::string> losses = t.metric("lm_loss", "m");
  CHECK(losses.size() == 40);
  // Each run goes on at the files that the ones before did not need.
  std::string text;
  for (int i = 0; i < 20 && (text.empty() || text.find("token files exist") != std::string::npos); ++i) {
    fs::remove_all(t.folder() + "/m");
    const Outcome warm = t.sh(mix("cache"));
    INFO(warm.text);
    CHECK(warm.code == 0);
    CHECK(t.metric("lm_loss", "m") == losses);
    text = warm.text;
  }
  INFO(text);
  CHECK_THAT(text, !Contains("tokenising") && !Contains("token files exist") &&
                       Contains("documents left out by deduplicate"));
}

TEST_CASE("run: with a shuffle window, steps run before the last token file exists, and wait for it") {
  TempRun t;
  const std::string ninth = write_parts_and_run(t);
  const Outcome held =
      t.shell(hold("cold/" + ninth + ".lock", "(8 of 12 made)", "held.log") + program() + " " +
              windowed("b", "cold") + " > held.log 2>&1; echo code $?; wait; cat held.log");
  INFO(held.text);
  CHECK_THAT(held.text, Contains("code 0"));
  CHECK(fs::exists(t.folder() + "/held"));
  CHECK_THAT(held.text, Contains("waiting for token files: cold/" + ninth + " (8 of 12 made)") &&
                            Contains("for token files") && Contains("of 12 token files exist"));
  CHECK(t.metric("lm_loss", "b") == t.metric("lm_loss", "a"));
  CHECK(t.metric("lm_loss", "b").size() == 40);
  CHECK(made_files(t, "cold").size() >= kFiles - 2);  // the last window is not needed
  CHECK_THAT(t.sh("plan tiny.yaml data.shuffle_window=2").text, Contains("making of token files"));
  CHECK_THAT(t.sh("plan tiny.yaml").text, !Contains("making of token files"));
}

TEST_CASE("run: token files that cannot be made end the run with a checkpoint, and a restart goes on") {
  TempRun t;
  const std::string ninth = write_parts_and_run(t);
  const std::string taken = t.folder() + "/cold/" + ninth + ".bin";
  fs::create_directories(taken + "/x");
  const Outcome broken = t.sh(windowed("b", "cold"));
  INFO(broken.text);
  CHECK(broken.code == 73);
  CHECK_THAT(broken.text, Contains("the later token files cannot be made") && Contains(ninth + ".bin"));
  const size_t steps = t.metric("lm_loss", "b").size();
  CHECK(steps < 40);
  fs::remove_all(taken);
  const Outcome fixed = t.sh(windowed("b", "cold"));
  INFO(fixed.text);
  CHECK(fixed.code == 0);
  CHECK(t.metric("lm_loss", "b") == t.metric("lm_loss", "a"));
  // A bad record is named as before the first step.
  std::ofstream(t.folder() + "/part-09.jsonl", std::ios::app) << "{\"text\": \n";
  const Outcome bad = t.sh(windowed("c", "cold"));
  INFO(bad.text);
  CHECK(bad.code == 65);
  CHECK_THAT(bad.text, Contains("part-09.jsonl:33"));
}

TEST_CASE("run: a stopped run stops the making of its token files, and the next start goes on") {
  TempRun t;
  const std::string ninth = write_parts_and_run(t);
  const Outcome stopped = t.shell_with_jobs(
      hold("cold/" + ninth + ".lock", "code 75", "end.log") + program() + " " + windowed("b", "cold") +
      " > held.log 2>&1 & pid=$!; for i in $(seq 600); do grep -q '(8 of 12 made)' held.log && break; sleep "
      "0.05; done; kill -INT $pid; wait $pid; echo code $? > end.log; cat end.log held.log; wait");
  INFO(stopped.text);
  CHECK_THAT(stopped.text, Contains("code 75") && Contains("waiting for token files") &&
                               Contains("the next start makes the others"));
  CHECK(!fs::exists(t.folder() + "/cold/" + ninth + ".idx"));
  const size_t steps = t.metric("lm_loss", "b").size();
  CHECK((steps > 20 && steps < 40));
  const Outcome more = t.sh(windowed("b", "cold"));
  INFO(more.text);
  CHECK(more.code == 0);
  CHECK(t.metric("lm_loss", "b") == t.metric("lm_loss", "a"));
}

TEST_CASE("run: ranks of another launcher train while the first of each node makes their token files") {
  TempRun t;
  const std::string ninth = write_parts_and_run(t);
  const Outcome held =
      t.shell_with_jobs("(" + hold("cold/" + ninth + ".lock", "(8 of 12 made)", "held.log") + "{ " +
                        as_torchrun(windowed("b", "cold"), 1) + "} > held.log 2>&1); cat held.log");
  INFO(held.text);
  CHECK_THAT(held.text, Contains("codes 0 0") && Contains("waiting for token files: cold/" + ninth));
  CHECK(fs::exists(t.folder() + "/held"));
  CHECK(t.metric("lm_loss", "b") == t.metric("lm_loss", "a"));
  CHECK(t.metric("lm_loss", "b").size() == 40);
  double waited = 0;
  for (const double ms : t.values("data_wait_ms", "b")) waited += ms;
  CHECK(waited > 100);
  // Two nodes with one folder.
  const Outcome nodes = t.shell_with_jobs(as_torchrun(windowed("c", "both"), 2));
  INFO(nodes.text);
  CHECK_THAT(nodes.text, Contains("codes 0 0"));
  CHECK(t.metric("lm_loss", "c") == t.metric("lm_loss", "a"));
}

TEST_CASE("run: token files that a rank of another launcher cannot make end all ranks with that error") {
  TempRun t;
  const std::string ninth = write_parts_and_run(t);
  fs::create_directories(t.folder() + "/cold/" + ninth + ".bin/x");
  for (const int nodes : {1, 2}) {
    const std::string name = "b" + std::to_string(nodes);
    const Outcome broken = t.shell_with_jobs(as_torchrun(windowed(name, "cold"), nodes));
    INFO(broken.text);
    CHECK_THAT(broken.text, Contains("codes 73 73") && Contains("the later token files cannot be made") &&
                                Contains(ninth + ".bin"));
    CHECK(t.metric("lm_loss", name).size() < 40);
    CHECK(t.sh("checkpoint verify " + name).code == 0);
  }
  fs::remove_all(t.folder() + "/cold/" + ninth + ".bin");
  const Outcome fixed = t.shell_with_jobs(as_torchrun(windowed("b1", "cold"), 1));
  INFO(fixed.text);
  CHECK_THAT(fixed.text, Contains("codes 0 0"));
  CHECK(t.metric("lm_loss", "b1") == t.metric("lm_loss", "a"));
}

TEST_CASE("run: 1, 2, 3, 4 and 8 ranks that are killed, with and without token files, have one order") {
  TempRun t;
  write_parts(t);
  const auto settings = [](int ranks, const std::string& name, const std::string& cache) {
    return windowed(name, cache,
                    fmt::format("train.global_batch_size=24 train.micro_batch_size=1 train.train_steps=12 "
                                "checkpoint.save_interval=3 parallel.data={}",
                                ranks));
  };
  const Outcome one = t.sh(settings(1, "r1", "warm"));
  INFO(one.text);
  REQUIRE(one.code == 0);
  const std::vector<double> wanted = t.values("lm_loss", "r1");
  REQUIRE(wanted.size() == 12);
  std::mt19937 random(3);
  for (const int ranks : {2, 3, 4, 8}) {
    const std::string name = "r" + std::to_string(ranks), cache = ranks % 4 == 0 ? "warm" : "cold" + name;
    const char* points[] = {"train.step", "train.batch", "data.read", "checkpoint.mid_write"};
    const std::string point = points[random() % 4];
    const unsigned occurrence = point == "checkpoint.mid_write" ? 1 + random() % 2 : 2 + random() % 9;
    const std::string fault =
        fmt::format("LTRAIN_FAULT={}:{}:{}:kill", point, random() % static_cast<unsigned>(ranks), occurrence);
    INFO(ranks << " ranks, " << fault);
    const Outcome killed = t.sh(settings(ranks, name, cache), fault);
    INFO(killed.text);
    CHECK(killed.code != 0);
    const Outcome again = t.sh(settings(ranks, name, cache));
    INFO(again.text);
    REQUIRE(again.code == 0);
    const std::vector<double> losses = t.values("lm_loss", name);
    REQUIRE(losses.size() == 12);
    for (size_t i = 0; i < 12; ++i) CHECK(std::abs(losses[i] - wanted[i]) < 1e-5);
  }
}
