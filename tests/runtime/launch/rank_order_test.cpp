// Order of ranks by the distance of their hosts.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "base/error.h"
#include "runtime/launch/rank_order.h"

using namespace ltrain;
using Catch::Contains;
using Order = std::vector<int>;

TEST_CASE("ranks of a host, then of a switch, follow each other, and else keep the launcher's order") {
  // Nothing to do: block by block, switch by switch.
  CHECK(order_by_distance({{"a", "s.l1"}, {"a", "s.l1"}, {"b", "s.l1"}, {"c", "s.l2"}}) == Order{0, 1, 2, 3});
  // Round robin over two hosts.
  CHECK(order_by_distance({{"a", ""}, {"b", ""}, {"a", ""}, {"b", ""}}) == Order{0, 2, 1, 3});
  // Leaves in turn, and two levels: b's leaf comes before c's, since they have a spine in common with a.
  CHECK(order_by_distance({{"a", "s1.l1"}, {"c", "s2.l3"}, {"b", "s1.l2"}, {"d", "s2.l3"}, {"e", "s1.l1"}}) ==
        Order{0, 4, 2, 1, 3});
  // Leaves of one name below two spines are two switches, and so are a host and a switch of one name.
  CHECK(order_by_distance({{"a", "s1.l"}, {"b", "s2.l"}, {"c", "s1.l"}}) == Order{0, 2, 1});
  CHECK(order_by_distance({{"l", ""}, {"a", "l"}, {"l", ""}}) == Order{0, 2, 1});
  // Sites keep their ranks.
  CHECK(order_by_distance({{"a", "l1"}, {"b", "l2"}, {"c", "l1"}, {"d", "l2"}}) == Order{0, 2, 1, 3});
  CHECK(order_by_distance({{"a", "l1"}, {"b", "l2"}, {"c", "l1"}, {"d", "l2"}}, 2) == Order{0, 1, 2, 3});
  CHECK(order_by_distance({}).empty());
  CHECK(order_by_distance({{"a", ""}, {"b", ""}}, 4) == Order{0, 1});  // refused later
}

TEST_CASE("an order by distance has every rank once, keeps rank 0, and no switch comes twice") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<RankLocation> ranks;
    const int count = 1 + static_cast<int>(random() % 60);
    for (int r = 0; r < count; ++r) {
      const int host = static_cast<int>(random() % 12);
      ranks.push_back(
          {"h" + std::to_string(host), "s" + std::to_string(host % 2) + ".l" + std::to_string(host % 6)});
    }
    const Order order = order_by_distance(ranks);
    Order sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (int r = 0; r < count; ++r) REQUIRE(sorted[static_cast<size_t>(r)] == r);
    REQUIRE(order[0] == 0);
    for (const auto& name : {&RankLocation::host, &RankLocation::switches}) {
      std::set<std::string> left;
      std::string now;
      for (int r : order) {
        const std::string& at = ranks[static_cast<size_t>(r)].*name;
        if (at == now) continue;
        REQUIRE(left.insert(at).second);
        now = at;
      }
    }
    // Once in order, nothing moves.
    std::vector<RankLocation> again;
    for (int r : order) again.push_back(ranks[static_cast<size_t>(r)]);
    const Order second = order_by_distance(again);
    REQUIRE(std::is_sorted(second.begin(), second.end()));
  }
}

TEST_CASE("levels between two ranks: one host, one leaf, one spine, none in common") {
  const RankLocation a{"a", "s1.l1"};
  CHECK(levels_between(a, a) == 0);
  CHECK(levels_between(a, {"b", "s1.l1"}) == 1);
  CHECK(levels_between(a, {"b", "s1.l2"}) == 2);
  CHECK(levels_between(a, {"b", "s2.l1"}) == 3);
  CHECK(levels_between({"a", ""}, {"b", ""}) == 1);
}

TEST_CASE("switches above a host: LTRAIN_TOPOLOGY, else Slurm's address without the node's name") {
  const std::string address = "SLURM_TOPOLOGY_ADDR", pattern = "SLURM_TOPOLOGY_ADDR_PATTERN";
  CHECK(switches_above({}).empty());
  CHECK(switches_above({{address, "s0.s4.node7"}, {pattern, "switch.switch.node"}}) == "s0.s4");
  CHECK(switches_above({{address, "s0.node7.site"}, {pattern, "switch.node"}}) == "s0");
  CHECK(switches_above({{address, "block3.node7"}, {pattern, "block.node"}}) == "block3");
  CHECK(switches_above({{address, "s0.node7"}}) == "s0");
  CHECK(switches_above({{address, "node7"}, {pattern, "node"}}).empty());
  CHECK(switches_above({{address, "s0.node7"}, {"LTRAIN_TOPOLOGY", "spine1.leaf3"}}) == "spine1.leaf3");
  CHECK(switches_above({{"LTRAIN_TOPOLOGY", ""}}).empty());
  for (const std::string bad : {".", "a.", ".a", "a..b", "a\nb"})
    CHECK_THROWS_WITH(switches_above({{"LTRAIN_TOPOLOGY", bad}}),
                      Contains("LTRAIN_TOPOLOGY") && Contains("spine1.leaf3"));
  CHECK_THROWS_AS(switches_above({{"LTRAIN_TOPOLOGY", std::string(600, 'a')}}), Error);
}

TEST_CASE("a new order is described with its switches and the number of ranks that moved") {
  const std::vector<RankLocation> ranks{{"a", "s.l1"}, {"b", "s.l2"}, {"c", "s.l1"}, {"d", ""}};
  CHECK(describe_order(ranks, {0, 2, 1, 3}) ==
        "ranks in the order of their switches: s.l1 (2 hosts), s.l2 (1 host), unknown switches (1 host); 2 "
        "of 4 "
        "ranks have another number than their launcher gave them (launch.rank_order: launcher keeps it)");
}
