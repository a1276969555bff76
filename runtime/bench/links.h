// Rates of the links between the ranks of a job, measured while all links are busy, and the slow ones among
// them.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor/tensor.h"
#include "runtime/launch/rank_order.h"

namespace ltrain {

class Job;

struct LinkOptions {
  DeviceKind device = DeviceKind::cpu;
  int64_t bytes = int64_t{16} << 20;  ///< size of one message
  int repeats = 3;                    ///< timed messages; the fastest one counts
  int most_rounds = 64;               ///< partners of a rank on other hosts
};

struct RankLink {
  int from = 0, to = 0;         ///< ranks
  double bytes_per_second = 0;  ///< one way, while both send
};

/// Links with as many levels of the network between their ranks.
struct LinkClass {
  int level = 0;  ///< levels_between()
  int64_t links = 0;
  double median = 0, lowest = 0;  ///< bytes per second
};

struct LinkReport {
  std::vector<LinkClass> classes;  ///< ascending by level
  std::vector<RankLink> slow;      ///< below kSlowLink of their class's median, slowest first
  /// Ranks of which most links are slow, with the slow and all links: their host or card is at fault.
  struct Rank {
    int rank = 0;
    int64_t slow = 0, links = 0;
  };
  std::vector<Rank> suspects;
};

/// Share of its class's median below which a link is slow.
inline constexpr double kSlowLink = 0.8;

/// Partners by round and rank; -1: the rank waits. Ranks of one host first meet each other (with
/// `within_hosts`), then those with their index on other hosts, each at most once. Of more than `most` rounds
/// between hosts `most` are taken, evenly.
std::vector<std::vector<int>> link_rounds(const std::vector<RankLocation>& ranks, int most,
                                          bool within_hosts);

/// Times the links of a job. Called on each of its ranks; returns the links on every rank.
std::vector<RankLink> time_links(Job& job, const std::vector<std::vector<int>>& rounds,
                                 const LinkOptions& options);

/// Median of at least one rate; the upper one of an even number.
double median_rate(std::vector<double> rates);
LinkReport judge_links(const std::vector<RankLink>& links, const std::vector<RankLocation>& ranks);

}  // namespace ltrain
