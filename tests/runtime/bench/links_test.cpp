// Links between ranks: who meets whom, and which links are slow.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "runtime/bench/links.h"

using namespace ltrain;

namespace {

std::vector<RankLocation> hosts_of(int hosts, int ranks_on_host) {
  std::vector<RankLocation> out;
  for (int h = 0; h < hosts; ++h)
    for (int i = 0; i < ranks_on_host; ++i)
      out.push_back({"h" + std::to_string(h), "l" + std::to_string(h / 2)});
  return out;
}

/// Pairs of all rounds. Checks that each round pairs ranks both ways.
std::set<std::pair<int, int>> pairs_of(const std::vector<std::vector<int>>& rounds) {
  std::set<std::pair<int, int>> pairs;
  for (const auto& partner : rounds)
    for (size_t a = 0; a < partner.size(); ++a) {
      const int b = partner[a];
      if (b < 0) continue;
      REQUIRE(b != static_cast<int>(a));
      REQUIRE(partner[static_cast<size_t>(b)] == static_cast<int>(a));
      if (static_cast<int>(a) < b) REQUIRE(pairs.emplace(static_cast<int>(a), b).second);
    }
  return pairs;
}

}  // namespace

TEST_CASE(
    "rounds of links: each pair of hosts once, with ranks of one index, and pairs of a host on request") {
  for (int hosts = 2; hosts <= 9; ++hosts) {
    const auto rounds = link_rounds(hosts_of(hosts, 3), 64, false);
    CHECK(rounds.size() == static_cast<size_t>(hosts - 1 + hosts % 2));
    const auto pairs = pairs_of(rounds);
    CHECK(pairs.size() == static_cast<size_t>(3 * hosts * (hosts - 1) / 2));
    for (const auto& [a, b] : pairs) CHECK((a % 3 == b % 3 && a / 3 != b / 3));
  }
  CHECK(pairs_of(link_rounds(hosts_of(2, 4), 64, true)).size() == 2 * 6 + 4);
  CHECK(link_rounds(hosts_of(1, 4), 64, false).empty());
  CHECK(pairs_of(link_rounds(hosts_of(1, 4), 64, true)).size() == 6);
  // With many hosts each meets as many others as there are rounds.
  const auto some = link_rounds(hosts_of(300, 1), 16, false);
  CHECK(some.size() == 16);
  CHECK(pairs_of(some).size() == 16 * 150);
  // Hosts with unequal numbers of ranks: the larger one's last ranks wait.
  auto uneven = hosts_of(2, 2);
  uneven.pop_back();
  CHECK(pairs_of(link_rounds(uneven, 64, true)) == std::set<std::pair<int, int>>{{0, 1}, {0, 2}});
}

TEST_CASE("a slow link is judged by its class, and a rank with mostly slow links is a suspect") {
  const auto ranks = hosts_of(6, 1);  // three leaves of two hosts
  std::vector<RankLink> links;
  for (const auto& [a, b] : pairs_of(link_rounds(ranks, 64, false)))
    links.push_back({a, b, a / 2 == b / 2 ? 40e9 : 20e9});
  LinkReport report = judge_links(links, ranks);
  REQUIRE(report.classes.size() == 2);
  CHECK((report.classes[0].level == 1 && report.classes[0].links == 3 && report.classes[0].median == 40e9));
  CHECK((report.classes[1].level == 2 && report.classes[1].links == 12 && report.classes[1].lowest == 20e9));
  CHECK((report.slow.empty() && report.suspects.empty()));
  // One link, at 79 % of its class; another at 81 %.
  for (RankLink& l : links) {
    if (l.from == 0 && l.to == 4) l.bytes_per_second = 0.79 * 20e9;
    if (l.from == 1 && l.to == 4) l.bytes_per_second = 0.81 * 20e9;
  }
  report = judge_links(links, ranks);
  REQUIRE(report.slow.size() == 1);
  CHECK((report.slow[0].from == 0 && report.slow[0].to == 4 && report.suspects.empty()));
  // All links of rank 3.
  for (RankLink& l : links)
    if (l.from == 3 || l.to == 3) l.bytes_per_second *= 0.5;
  report = judge_links(links, ranks);
  CHECK(report.slow.size() == 6);
  REQUIRE(report.suspects.size() == 1);
  CHECK((report.suspects[0].rank == 3 && report.suspects[0].slow == 5 && report.suspects[0].links == 5));
}
