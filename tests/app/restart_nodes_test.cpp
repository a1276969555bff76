// launch.max_restarts with an `ltrain run` for each of two nodes: all launchers start the next attempt
// together.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>

#include "base/time_scale.h"
#include "tests/app/run_program.h"
#include "tests/support/free_port.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kTenSteps =
    "run tiny.yaml train.train_steps=10 checkpoint.save_interval=4 checkpoint.async_save=false ";

/// Launchers of some nodes with one rank each, on one machine.
struct Nodes {
  explicit Nodes(int nodes = 2) : count(nodes) {}
  TempRun t;
  const int count;
  const int port = free_port();

  /// Starts the launcher of a node in the background of a shell, with its output in node-N and its process id
  /// in $pN.
  std::string start(int node, const std::string& arguments, const std::string& variables = "") const {
    return fmt::format(
        "{} PET_NNODES={} PET_NODE_RANK={} PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT={} "
        "{} "
        "{} {} > node-{} 2>&1 & p{}=$!\n",
        variables, count, node, port, program(), kTenSteps, arguments, node, node);
  }
  /// Runs the script and returns the exit codes of the launchers, "CODE CODE".
  std::string codes(std::string script) const {
    script += "c=\n";
    for (int node = 0; node < count; ++node) script += fmt::format("wait $p{}; c=\"$c $?\"\n", node);
    const Outcome o = t.shell_with_jobs(script + "echo codes:$c\n");
    const size_t at = o.text.find("codes: ");
    return at == std::string::npos ? o.text : o.text.substr(at + 7, o.text.find('\n', at) - at - 7);
  }
  std::string text(int node) const { return read_file(fmt::format("{}/node-{}", t.folder(), node)); }
};

std::vector<std::vector<std::string>> numbers(const TempRun& t) {
  return {t.metric("lm_loss"), t.metric("grad_norm"), t.metric("eval_loss"), t.metric("consumed_tokens")};
}

const std::string kRestarts = "launch.max_restarts=5 launch.restart_wait_seconds=0.1 ";

/// Until node 0 says that it waits for a restart.
const std::string kUntilItWaits =
    "for i in $(seq 600); do "
    "grep -q 'restart 1 of 5 in' node-1 && grep -q 'restart 1 of 5 in' node-0 && break; sleep 0.05; done\n";

}  // namespace

TEST_CASE("launchers of two nodes start again together, with the numbers of an unbroken run") {
  TempRun whole;
  REQUIRE(whole.sh(kTenSteps).code == 0);
  const auto c = GENERATE("train.step:1:7:kill", "train.step:0:7:kill", "train.step:1:7:abort");
  Nodes n;
  const std::string fault = fmt::format("LTRAIN_FAULT={}", c);
  const std::string codes = n.codes(n.start(0, kRestarts, fault) + n.start(1, kRestarts, fault));
  INFO(c << "\n" << codes << "\n" << n.text(0) << "\n" << n.text(1));
  CHECK(codes == "0 0");
  CHECK_THAT(n.text(0), Contains("ltrain: restart 1 of 5 in 0.1 s") &&
                            Contains("restart 1 of 5: goes on from step 4, 2 steps are lost"));
  CHECK_THAT(n.text(1), Contains("ltrain: restart 1 of 5 in 0.1 s"));
  CHECK_THAT(n.text(0), !Contains("wrong token"));
  CHECK(numbers(n.t) == numbers(whole));
  CHECK(n.t.metric("restart") == std::vector<std::string>{"4:1"});
}

TEST_CASE("launchers of two nodes: a fault that comes back ends both with 76") {
  Nodes n;
  const std::string fault = "LTRAIN_FAULT=train.step:1:3:kill";
  const std::string codes = n.codes(n.start(0, kRestarts, fault) + n.start(1, kRestarts, fault));
  INFO(n.text(0) << "\n" << n.text(1));
  CHECK(codes == "76 76");
  for (const int node : {0, 1})
    CHECK_THAT(n.text(node), Contains("restart 2 of 5 in 0.2 s") &&
                                 Contains("no restart: two restarts in a row from step 0") &&
                                 Contains("exit code 76"));
}

TEST_CASE("launchers of two nodes: an error that every restart would repeat ends both at once") {
  Nodes n;
  const std::string fault = "LTRAIN_FAULT=train.step:1:3:error";
  const std::string codes = n.codes(n.start(0, kRestarts, fault) + n.start(1, kRestarts, fault));
  INFO(n.text(0) << "\n" << n.text(1));
  CHECK(codes == "70 70");
  CHECK_THAT(n.text(0) + n.text(1), !Contains("restart 1 of"));
}

TEST_CASE("launchers of two nodes: a signal to one during the wait ends both with 75") {
  const int told = GENERATE(0, 1);
  Nodes n;
  const std::string more = "launch.max_restarts=5 launch.restart_wait_seconds=100";
  const std::string fault = "LTRAIN_FAULT=train.step:1:7:kill";
  const auto begin = std::chrono::steady_clock::now();
  const std::string codes = n.codes(n.start(0, more, fault) + n.start(1, more, fault) + kUntilItWaits +
                                    fmt::format("kill -TERM $p{}\n", told));
  INFO(n.text(0) << "\n" << n.text(1));
  CHECK(codes == "75 75");
  CHECK_THAT(n.text(told), Contains("signal 15 (SIGTERM) before the restart"));
  CHECK_THAT(n.text(1 - told), Contains("signal 15 (SIGTERM) to the launcher of a node before the restart"));
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
        30 * ltrain::time_scale());
}

TEST_CASE("launchers of two nodes: a launcher that is gone is named, and the other one ends with 71") {
  SECTION("before they meet") {
    Nodes n;
    const std::string codes =
        n.codes(n.start(0, kRestarts, "LTRAIN_JOIN_TIMEOUT=3") +
                n.start(1, kRestarts, "LTRAIN_FAULT=train.step:1:7:hang LTRAIN_JOIN_TIMEOUT=3") +
                "for i in $(seq 600); do grep -q '^step 6' node-0 && break; sleep 0.05; done\nsleep 0.5; "
                "kill -9 $p1\n");
    INFO(n.text(0) << "\n" << n.text(1));
    CHECK(codes == "71 137");
    CHECK_THAT(n.text(0), Contains("no restart: the launcher of node 1 did not come to port"));
  }
  SECTION("while they wait") {
    Nodes n;
    const std::string more = "launch.max_restarts=5 launch.restart_wait_seconds=100";
    const std::string fault = "LTRAIN_FAULT=train.step:1:7:kill";
    const std::string codes =
        n.codes(n.start(0, more, fault) + n.start(1, more, fault) + kUntilItWaits + "kill -9 $p1\n");
    INFO(n.text(0) << "\n" << n.text(1));
    CHECK(codes == "71 137");
    CHECK_THAT(n.text(0), Contains("no restart: the launcher of node 1 is gone"));
  }
}

namespace {

/// Kills a launcher when node 0 has done a step. Its ranks die with it.
std::string kill_after_step(int step, int node) {
  return fmt::format(
      "for i in $(seq 600); do grep -q '^step {}' node-0 && break; sleep 0.05; done\nkill -9 $p{}\n", step,
      node);
}

/// Checks that the losses of two runs agree. Sums over other numbers of ranks round differently.
void check_close(const TempRun& a, const TempRun& b) {
  const std::vector<double> one = a.values("lm_loss"), other = b.values("lm_loss");
  REQUIRE(one.size() == other.size());
  for (size_t i = 0; i < one.size(); ++i) CHECK(one[i] == Approx(other[i]).epsilon(2e-6));
  CHECK(a.metric("consumed_samples") == b.metric("consumed_samples"));
}

}  // namespace

TEST_CASE("launchers of two nodes: with launch.min_nodes the job goes on without a node that is gone") {
  TempRun whole;
  REQUIRE(whole.sh(kTenSteps).code == 0);
  Nodes n;
  const std::string more = kRestarts + "launch.min_nodes=1";
  const std::string slow = "LTRAIN_JOIN_TIMEOUT=3 LTRAIN_FAULT=train.step:1:7:hang";
  const std::string codes =
      n.codes(n.start(0, more, "LTRAIN_JOIN_TIMEOUT=3") + n.start(1, more, slow) + kill_after_step(6, 1));
  INFO(codes << "\n" << n.text(0) << "\n" << n.text(1));
  CHECK(codes == "0 137");
  CHECK_THAT(n.text(0),
             Contains("restart 1 of 5 in 0.1 s, with node 0 of 2 and 1 rank: no other launcher came") &&
                 Contains("restart 1 of 5: goes on from step 4"));
  check_close(n.t, whole);
}

TEST_CASE("launchers of three nodes: the second is gone, and the first and the third go on") {
  const std::string batch = "parallel.data=3 train.global_batch_size=12 launch.min_nodes=2 ";
  Nodes n(3), whole(3);
  const std::string more = kRestarts + batch, wait = "LTRAIN_JOIN_TIMEOUT=3";
  REQUIRE(whole.codes(whole.start(0, more) + whole.start(1, more) + whole.start(2, more)) == "0 0 0");
  const std::string codes =
      n.codes(n.start(0, more, wait) + n.start(1, more, wait + " LTRAIN_FAULT=train.step:1:7:hang") +
              n.start(2, more, wait) + kill_after_step(6, 1));
  INFO(codes << "\n" << n.text(0) << "\n" << n.text(1) << "\n" << n.text(2));
  CHECK(codes == "0 137 0");
  for (const int node : {0, 2}) CHECK_THAT(n.text(node), Contains("with nodes 0, 2 of 3 and 2 ranks"));
  check_close(n.t, whole.t);
}

TEST_CASE(
    "launchers of two sites: with launch.min_nodes one goes on from the last save when the other is lost") {
  const std::string sites = "diloco.sites=2 diloco.inner_steps=2 train.eval_interval=4 ";
  TempRun whole;
  REQUIRE(
      whole.sh(kTenSteps + sites + "parallel.data=2 train.stop_step=4 checkpoint.save_at_end=true").code ==
      0);
  REQUIRE(whole.sh(kTenSteps + "diloco.sites=1 diloco.inner_steps=2 train.eval_interval=4 parallel.data=1")
              .code == 0);
  Nodes n;
  const std::string more = kRestarts + sites + "launch.min_nodes=1 parallel.data=2";
  const std::string slow = "LTRAIN_JOIN_TIMEOUT=3 LTRAIN_FAULT=train.step:1:8:hang";
  const std::string codes =
      n.codes(n.start(0, more, "LTRAIN_JOIN_TIMEOUT=3") + n.start(1, more, slow) + kill_after_step(6, 1));
  INFO(codes << "\n" << n.text(0) << "\n" << n.text(1));
  CHECK(codes == "0 137");
  CHECK_THAT(n.text(0), Contains("restart 1 of 5: goes on from step 4"));
  CHECK(numbers(n.t) == numbers(whole));
}

TEST_CASE("launchers of three sites with shares: those that stay keep theirs when the second is lost") {
  const std::string more =
      "parallel.data=3 diloco.sites=3 diloco.inner_steps=2 diloco.shares=[1,2,3] train.micro_batch_size=1 "
      "train.global_batch_size=12 train.eval_interval=4 launch.min_nodes=2 " +
      kRestarts;
  Nodes n(3);
  const std::string slow = "LTRAIN_JOIN_TIMEOUT=3 LTRAIN_FAULT=train.step:1:8:hang";
  const std::string wait = "LTRAIN_JOIN_TIMEOUT=3";
  const std::string codes = n.codes(n.start(0, more, wait) + n.start(1, more, slow) + n.start(2, more, wait) +
                                    kill_after_step(6, 1));
  INFO(codes << "\n" << n.text(0) << "\n" << n.text(1));
  CHECK(codes == "0 137 0");
  CHECK_THAT(n.text(0), Contains("with nodes 0, 2 of 3"));
  const std::string recipe = read_file(n.t.folder() + "/run/recipe.yaml");
  CHECK_THAT(recipe, Contains("sites: 2") && Contains("shares: [1, 3]"));
}

TEST_CASE("launch.min_nodes with which the job could not go on is refused at the start") {
  Nodes n;
  const std::string none = "launch.max_restarts=5 ";
  const auto [more, text] = GENERATE(
      std::pair("launch.min_nodes=3", "launch.min_nodes = 3: the job has 2 nodes; nearest valid value: 2"),
      std::pair("launch.min_nodes=1 parallel.tensor=2 parallel.data=1",
                "launch.min_nodes = 1: the job could not go on with 1 of 2 nodes: parallel.data = 1 on 2 "
                "nodes does not divide over 1"));
  const std::string codes = n.codes(n.start(0, none + more) + n.start(1, none + more));
  INFO(n.text(0));
  CHECK(codes == "64 64");
  CHECK_THAT(n.text(0), Contains(text));
}

TEST_CASE("launch.min_nodes with which a site would lose a part of its nodes is refused at the start") {
  Nodes n(4);
  const std::string more =
      "parallel.data=4 diloco.sites=2 diloco.inner_steps=2 train.eval_interval=4 launch.max_restarts=5 "
      "launch.min_nodes=3";
  const std::string codes =
      n.codes(n.start(0, more) + n.start(1, more) + n.start(2, more) + n.start(3, more));
  INFO(n.text(0));
  CHECK(codes == "64 64 64 64");
  CHECK_THAT(
      n.text(0),
      Contains("launch.min_nodes = 3: the job could not go on with 3 of 4 nodes: diloco.sites = 2 of 2 "
               "nodes each: 3 nodes are not whole sites"));
}
