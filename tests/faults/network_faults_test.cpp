// Two nodes in network namespaces of their own. Their link goes down, without a reset of connections, or one
// of them is frozen.
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>

#include "tests/faults/run_support.h"
#include "tests/support/outcome.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Exit codes and messages of two nodes after a fault.
struct TwoNodes {
  std::string code[2], error[2];
  double seconds = 0;
};

/// Runs `ltrain selftest allreduce OPTIONS` on two nodes, named one and two, with `ranks` ranks each, and
/// after two seconds the shell commands of `fault` on the first; $first and $second are the nodes' launchers
/// there. Nothing, and the test counts as skipped, where they cannot be made.
std::optional<TwoNodes> run_two_nodes(const std::string& options, const std::string& fault, int ranks = 1) {
  const TemporaryFolder kept;
  const std::string folder = kept.path();
  std::ofstream(folder + "/nodes.sh") << fmt::format(
      "cd {0}\n"
      "mkdir -p /run/netns && mount -t tmpfs none /run/netns || exit 77\n"
      "ip link set lo up && ip netns add other || exit 77\n"
      "ip link add one type veth peer name two netns other || exit 77\n"
      "ip addr add 10.9.0.1/24 dev one && ip link set one up || exit 77\n"
      "ip netns exec other sh -c 'ip addr add 10.9.0.2/24 dev two && ip link set two up && ip link set lo "
      "up' "
      "|| exit 77\n"
      "export PET_NNODES=2 PET_NPROC_PER_NODE={5} PET_MASTER_ADDR=10.9.0.1 PET_MASTER_PORT=23456\n"
      "run='{1} selftest allreduce --steps 100000 --step-seconds 0.005 {2}'\n"
      "as() {{ echo \"echo $1 >/proc/sys/kernel/hostname; exec $run\"; }}\n"
      "PET_NODE_RANK=0 unshare -u sh -c \"$(as one)\" 2>error-0 >output-0 & first=$!\n"
      "PET_NODE_RANK=1 ip netns exec other unshare -u sh -c \"$(as two)\" 2>error-1 >output-1 & second=$!\n"
      "sleep {3}\n"
      "{4}\n"
      "wait $first; echo $? >code-0\n"
      "wait $second; echo $? >code-1\n",
      folder, LTRAIN_BINARY, options, scaled(2), fault, ranks);
  const auto begin = std::chrono::steady_clock::now();
  const int status = std::system(("unshare -n -m sh " + folder + "/nodes.sh 2>" + folder + "/setup").c_str());
  TwoNodes nodes;
  nodes.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto text = [&](const std::string& name) {
    std::ifstream file(folder + "/" + name);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  };
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    skip_test("no network namespaces with a veth pair, or no iptables here (unshare, ip): " + text("setup"));
    return std::nullopt;
  }
  for (int i = 0; i < 2; ++i) {
    nodes.code[i] = text(fmt::format("code-{}", i));
    nodes.error[i] = text(fmt::format("error-{}", i));
  }
  return nodes;
}

}  // namespace

TEST_CASE("the link of a node goes down without a reset (F38): both nodes end in bounded time, and say who") {
  const std::optional<TwoNodes> made = run_two_nodes("", "ip link set one down");
  if (!made) return;
  const TwoNodes& n = *made;
  INFO(n.error[0] << "\n" << n.error[1]);
  CHECK((n.code[0] == "71\n" && n.code[1] == "71\n"));
  CHECK(n.seconds < 20 * time_scale());
  CHECK_THAT(n.error[0], Contains("rank 1") && Contains("no heartbeat") && Contains("unreachable"));
  CHECK_THAT(n.error[1], Contains("launcher") && Contains("has been silent"));
}

TEST_CASE("data stop between two nodes (F39), control messages go on: both name the hosts of the path") {
  // Control messages go through the launcher's port.
  const std::optional<TwoNodes> made = run_two_nodes(
      fmt::format("--deadline {}", scaled(2)),
      "rule='iptables -A INPUT -i one -p tcp'\n"
      "$rule --dport 23456 -j ACCEPT && $rule --sport 23456 -j ACCEPT && $rule -j DROP || exit 77");
  if (!made) return;
  const TwoNodes& n = *made;
  INFO(n.error[0] << "\n" << n.error[1]);
  CHECK((n.code[0] == "71\n" && n.code[1] == "71\n"));
  CHECK(n.seconds < 20 * time_scale());
  for (const std::string& error : n.error)
    CHECK_THAT(error, Contains("rank 0 on host one gets no data, in section step") &&
                          Contains("data do not pass between the hosts one, two") && !Contains("hangs"));
}

TEST_CASE(
    "all processes of a node are frozen (F3): one line names its host, and once it runs again it ends") {
  const std::optional<TwoNodes> made = run_two_nodes(
      "",
      "all=\"$second $(cat /proc/$second/task/*/children)\"\n"
      "kill -STOP $all || exit 77\n"
      "(while grep -q 'State:.[RSD]' /proc/$first/status; do sleep 0.1; done; kill -CONT $all) &",
      2);
  if (!made) return;
  const TwoNodes& n = *made;
  INFO(n.error[0] << "\n" << n.error[1]);
  CHECK((n.code[0] == "71\n" && n.code[1] == "71\n"));
  CHECK(n.seconds < 25 * time_scale());
  const size_t first = n.error[0].find("on host two sent no heartbeat");
  REQUIRE(first != std::string::npos);
  CHECK(n.error[0].find("sent no heartbeat", first + 20) == std::string::npos);
  CHECK_THAT(n.error[0], Contains("its host is frozen or unreachable") && Contains("    the same on rank "));
}
