// Ranks that join with the switches above their hosts get numbers by distance.
#include <catch2/catch.hpp>

#include "tests/parallel/process_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Two leaves of two hosts each, which the launcher numbered in turn.
void four_hosts(int rank) {
  const std::string host = "host" + std::to_string(rank), leaf = rank % 2 ? "spine.leaf1" : "spine.leaf0";
  ::setenv("SLURMD_NODENAME", host.c_str(), 1);
  ::setenv("LTRAIN_TOPOLOGY", leaf.c_str(), 1);
}

/// Each rank checks its own host, all ranks' hosts, and that numbers of groups are those of the job.
RankBody expects(const std::vector<std::string>& hosts) {
  return [hosts](Job& job, Communicator& world, Stream& s) {
    const int me = job.info().rank;
    if (job.info().host != hosts[static_cast<size_t>(me)])
      throw std::runtime_error("host " + job.info().host);
    const auto locations = job.locations();
    for (size_t r = 0; r < hosts.size(); ++r)
      if (locations[r].host != hosts[r]) throw std::runtime_error("locations");
    if (world.rank() != me) throw std::runtime_error("place in the group");
    std::vector<float> sent{static_cast<float>(me)}, all(hosts.size());
    world.all_gather(s, tensor(all), tensor(sent));
    s.synchronize();
    for (size_t r = 0; r < hosts.size(); ++r)
      if (all[r] != static_cast<float>(r)) throw std::runtime_error("gathered");
    auto pair = job.new_group("pair", Axis::tensor, {me / 2 * 2, me / 2 * 2 + 1});
    pair->barrier(s);
  };
}

}  // namespace

TEST_CASE("ranks of two switches in turn are numbered by switch, on all of them, and groups follow") {
  Processes ordered(4, expects({"host0", "host2", "host1", "host3"}), 20, four_hosts, true);
  CHECK(ordered.wait() == std::vector<int>(4, 0));
  CHECK(ordered.texts.empty());
  Processes launcher(4, expects({"host0", "host1", "host2", "host3"}), 20, four_hosts);
  CHECK(launcher.wait() == std::vector<int>(4, 0));
  CHECK(launcher.texts.empty());
}
