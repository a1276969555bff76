// Four hosts in network namespaces on one bridge, of which one has a slow cable.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "tests/faults/run_support.h"
#include "tests/support/outcome.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Output of `ltrain bench --links --json` on four hosts, whose rates are in Mbit/s; nothing, and the test
/// counts as skipped, where they cannot be made.
std::string measure(const std::string& folder, const std::string& rates) {
  std::ofstream(folder + "/hosts.sh") << fmt::format(
      "cd {0}\n"
      "mkdir -p /run/netns && mount -t tmpfs none /run/netns || exit 77\n"
      "ip link add bridge type bridge && ip link set bridge up || exit 77\n"
      "i=0\n"
      "for rate in {2}; do\n"
      "  ip netns add h$i && ip link add v$i type veth peer name e netns h$i || exit 77\n"
      "  ip link set v$i master bridge && ip link set v$i up || exit 77\n"
      "  ip netns exec h$i sh -c \"ip addr add 10.9.0.$((i + 1))/24 dev e && ip link set e up && ip link set "
      "lo up\" || "
      "exit 77\n"
      "  ip netns exec h$i tc qdisc add dev e root tbf rate ${{rate}}mbit burst 64kb latency 50ms || exit "
      "77\n"
      "  i=$((i + 1))\n"
      "done\n"
      "export WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.9.0.1 MASTER_PORT=23456\n"
      "for i in 0 1 2 3; do\n"
      "  RANK=$i GROUP_RANK=$i SLURMD_NODENAME=host$i ip netns exec h$i {1} bench --links --json >out$i 2>&1 "
      "&\n"
      "done\n"
      "wait\n",
      folder, LTRAIN_BINARY, rates);
  const int status = std::system(("unshare -n -m sh " + folder + "/hosts.sh 2>" + folder + "/setup").c_str());
  const auto text = [&](const std::string& name) {
    std::stringstream all;
    all << std::ifstream(folder + "/" + name).rdbuf();
    return all.str();
  };
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    skip_test("no network namespaces with a bridge, or no tc here (unshare, ip, tc): " + text("setup"));
    return "";
  }
  return text("out0") + text("out1") + text("out2") + text("out3");
}

}  // namespace

TEST_CASE(
    "a host with a slow cable is the one suspect of bench --links, and none where all cables are equal") {
  const TemporaryFolder folder;
  const std::string slow = measure(folder.path(), "800 800 200 800");
  if (slow.empty()) return;
  INFO(slow);
  CHECK_THAT(slow, Contains("\"suspects\":[{\"rank\":2,\"slow\":3,\"links\":3}]"));
  const std::string equal = measure(folder.path(), "400 400 400 400");
  INFO(equal);
  CHECK_THAT(equal, Contains("\"slow\":[],\"suspects\":[]"));
}
