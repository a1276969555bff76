// launch.max_restarts with an `ltrain run` for each of two nodes: all launchers start the next attempt
// together.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>

#include "base/time_scale.h"
#include "parallel/comm/socket.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kJob =
    "run tiny.yaml train.train_steps=10 checkpoint.save_interval=4 checkpoint.async_save=false ";

int free_port() {
  int port = 0;
  std::string error;
  ltrain::listen_on("127.0.0.1", {0}, &port, &error);
  return port;
}

/// Launchers of two nodes with one rank each, on one machine.
struct TwoNodes {
  TempRun t;
  const int port = free_port();

  /// Starts the launcher of a node in the background of a shell, with its output in node-N and its process id
  /// in $pN.
  std::string start(int node, const std::string& arguments, const std::string& variables = "") const {
    return fmt::format(
        "{} PET_NNODES=2 PET_NODE_RANK={} PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT={} "
        "{} "
        "{} {} > node-{} 2>&1 & p{}=$!\n",
        variables, node, port, program(), kJob, arguments, node, node);
  }
  /// Runs the script and returns "CODE CODE".
  std::string codes(const std::string& script) const {
    const Outcome o = t.shell_with_jobs(script + "wait $p0; c=$?; wait $p1; echo codes: $c $?\n");
    const size_t at = o.text.find("codes: ");
    return at == std::string::npos ? o.text : o.text.substr(at + 7, o.text.find('\n', at) - at - 7);
  }
  std::string text(int node) const { return read_text(fmt::format("{}/node-{}", t.folder(), node)); }
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
  REQUIRE(whole.sh(kJob).code == 0);
  const auto c = GENERATE("train.step:1:7:kill", "train.step:0:7:kill", "train.step:1:7:abort");
  TwoNodes n;
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
  TwoNodes n;
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
  TwoNodes n;
  const std::string fault = "LTRAIN_FAULT=train.step:1:3:error";
  const std::string codes = n.codes(n.start(0, kRestarts, fault) + n.start(1, kRestarts, fault));
  INFO(n.text(0) << "\n" << n.text(1));
  CHECK(codes == "70 70");
  CHECK_THAT(n.text(0) + n.text(1), !Contains("restart 1 of"));
}

TEST_CASE("launchers of two nodes: a signal to one during the wait ends both with 75") {
  const int told = GENERATE(0, 1);
  TwoNodes n;
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
    TwoNodes n;
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
    TwoNodes n;
    const std::string more = "launch.max_restarts=5 launch.restart_wait_seconds=100";
    const std::string fault = "LTRAIN_FAULT=train.step:1:7:kill";
    const std::string codes =
        n.codes(n.start(0, more, fault) + n.start(1, more, fault) + kUntilItWaits + "kill -9 $p1\n");
    INFO(n.text(0) << "\n" << n.text(1));
    CHECK(codes == "71 137");
    CHECK_THAT(n.text(0), Contains("no restart: the launcher of node 1 is gone"));
  }
}
