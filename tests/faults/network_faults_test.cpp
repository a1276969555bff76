// Two nodes in network namespaces of their own, whose link goes down: no connection is reset, nothing
// arrives.
#include <catch2/catch.hpp>

#include "tests/faults/run_support.h"
#include "tests/support/outcome.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("the link of a node goes down without a reset (F38): both nodes end in bounded time, and say who") {
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
      "export PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=10.9.0.1 PET_MASTER_PORT=23456\n"
      "run='{1} selftest allreduce --steps 100000 --step-seconds 0.005'\n"
      "PET_NODE_RANK=0 $run 2>error-0 >output-0 & first=$!\n"
      "PET_NODE_RANK=1 ip netns exec other $run 2>error-1 >output-1 & second=$!\n"
      "sleep {2}\n"
      "ip link set one down\n"
      "wait $first; echo $? >code-0\n"
      "wait $second; echo $? >code-1\n",
      folder, LTRAIN_BINARY, scaled(2));
  const auto begin = std::chrono::steady_clock::now();
  const int status = std::system(("unshare -n -m sh " + folder + "/nodes.sh 2>" + folder + "/setup").c_str());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto text = [&](const std::string& name) {
    std::ifstream file(folder + "/" + name);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  };
  const std::string setup = text("setup");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    skip_test("no network namespaces with a veth pair here (unshare, ip): " + setup);
  INFO(text("error-0") << "\n" << text("error-1"));
  CHECK(text("code-0") == "71\n");
  CHECK(text("code-1") == "71\n");
  CHECK(seconds < 20 * time_scale());
  CHECK_THAT(text("error-0"), Contains("rank 1") && Contains("no heartbeat") && Contains("unreachable"));
  CHECK_THAT(text("error-1"), Contains("launcher") && Contains("has been silent"));
}
