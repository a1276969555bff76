#include "runtime/bench/links.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include "kernels/tensor/device.h"
#include "kernels/tensor/timeline.h"
#include "parallel/comm/communicator.h"
#include "runtime/launch/job.h"

namespace ltrain {
namespace {

/// Rounds in which each of n meets each other once (the circle method): partner by round and place; -1: none.
std::vector<std::vector<int>> tournament(int n) {
  std::vector<std::vector<int>> rounds;
  if (n < 2) return rounds;
  const int places = n + n % 2;  // with an odd number one waits
  for (int round = 0; round + 1 < places; ++round) {
    std::vector<int> partner(static_cast<size_t>(n), -1);
    const auto meet = [&](int a, int b) {
      if (a >= n || b >= n) return;
      partner[static_cast<size_t>(a)] = b, partner[static_cast<size_t>(b)] = a;
    };
    meet(places - 1, round);
    for (int i = 1; i < places / 2; ++i)
      meet((round + i) % (places - 1), (round - i + places - 1) % (places - 1));
    rounds.push_back(std::move(partner));
  }
  return rounds;
}

std::vector<std::vector<int>> ranks_by_host(const std::vector<RankLocation>& ranks) {
  std::map<std::string, size_t> known;
  std::vector<std::vector<int>> hosts;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const size_t host = known.emplace(ranks[r].host, hosts.size()).first->second;
    if (host == hosts.size()) hosts.emplace_back();
    hosts[host].push_back(static_cast<int>(r));
  }
  return hosts;
}

}  // namespace

double median_rate(std::vector<double> rates) {
  const auto middle = rates.begin() + static_cast<int64_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

std::vector<std::vector<int>> link_rounds(const std::vector<RankLocation>& ranks, int most,
                                          bool within_hosts) {
  const std::vector<std::vector<int>> hosts = ranks_by_host(ranks);
  std::vector<std::vector<int>> rounds;
  size_t largest = 0;
  for (const auto& host : hosts) largest = std::max(largest, host.size());
  if (within_hosts)
    for (const auto& places : tournament(static_cast<int>(largest))) {
      std::vector<int> partner(ranks.size(), -1);
      for (const auto& host : hosts)
        for (size_t i = 0; i < host.size(); ++i)
          if (const auto other = static_cast<size_t>(places[i]); places[i] >= 0 && other < host.size())
            partner[static_cast<size_t>(host[i])] = host[other];
      rounds.push_back(std::move(partner));
    }
  const auto between = tournament(static_cast<int>(hosts.size()));
  const size_t taken = std::min(between.size(), static_cast<size_t>(most));
  for (size_t t = 0; t < taken; ++t) {
    const std::vector<int>& places = between[t * between.size() / taken];
    std::vector<int> partner(ranks.size(), -1);
    for (size_t h = 0; h < hosts.size(); ++h) {
      if (places[h] < 0) continue;
      const std::vector<int>& other = hosts[static_cast<size_t>(places[h])];
      for (size_t i = 0; i < std::min(hosts[h].size(), other.size()); ++i)
        partner[static_cast<size_t>(hosts[h][i])] = other[i];
    }
    rounds.push_back(std::move(partner));
  }
  return rounds;
}

std::vector<RankLink> time_links(Job& job, const std::vector<std::vector<int>>& rounds,
                                 const LinkOptions& o) {
  const int n = job.info().world_size, me = job.info().rank;
  std::vector<int> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  const bool cpu = o.device == DeviceKind::cpu;
  const auto group = cpu ? job.new_group("links", Axis::data, all)
                         : job.new_gpu_group("links", Axis::data, all, GroupMessages::tensors);
  // Times are gathered through the host: a card has no sums of its own here.
  const auto control = job.new_tree_group("link times", Axis::data, all);
  const auto stream = cpu ? make_inline_stream("links") : make_compute_stream(o.device, "links");
  const auto host_stream = make_inline_stream("link times");
  const auto count = std::max<int64_t>(o.bytes / 4, 1);
  const std::shared_ptr<void> memory = device_memory(o.device, 2 * count * 4);
  float* const data = static_cast<float*>(memory.get());
  const Tensor out{data, DType::f32, o.device, {count}, nullptr},
      in{data + count, DType::f32, o.device, {count}, nullptr};
  std::vector<double> seconds(rounds.size(), 0);
  for (size_t r = 0; r < rounds.size(); ++r) {
    const int partner = rounds[r][static_cast<size_t>(me)];
    job.section("measuring links", static_cast<int64_t>(r));
    control->barrier(*host_stream);
    if (partner < 0) continue;
    double best = 0;
    for (int i = 0; i < o.repeats + 1; ++i) {  // the first opens the connection
      const double begin = steady_seconds();
      group->send_recv(*stream, out, partner, in, partner);
      stream->synchronize();
      const double took = steady_seconds() - begin;
      if (i > 0 && (best == 0 || took < best)) best = took;
    }
    seconds[r] = best;
  }
  const auto rounds_count = static_cast<int64_t>(rounds.size());
  std::vector<double> gathered(rounds.size() * static_cast<size_t>(n));
  control->all_gather(*host_stream,
                      {gathered.data(), DType::f64, DeviceKind::cpu, {n * rounds_count}, nullptr},
                      {seconds.data(), DType::f64, DeviceKind::cpu, {rounds_count}, nullptr});
  host_stream->synchronize();
  std::vector<RankLink> links;
  for (size_t r = 0; r < rounds.size(); ++r)
    for (int a = 0; a < n; ++a) {
      const int b = rounds[r][static_cast<size_t>(a)];
      if (b < a) continue;
      const auto at = [&](int rank) { return gathered[static_cast<size_t>(rank) * rounds.size() + r]; };
      links.push_back({a, b, static_cast<double>(count * 4) / std::max(at(a), at(b))});
    }
  return links;
}

LinkReport judge_links(const std::vector<RankLink>& links, const std::vector<RankLocation>& ranks) {
  const auto level = [&](const RankLink& l) {
    return levels_between(ranks[static_cast<size_t>(l.from)], ranks[static_cast<size_t>(l.to)]);
  };
  std::map<int, std::vector<double>> rates;
  for (const RankLink& l : links) rates[level(l)].push_back(l.bytes_per_second);
  LinkReport report;
  std::map<int, double> median;
  for (const auto& [at, values] : rates) {
    median[at] = median_rate(values);
    report.classes.push_back({at, static_cast<int64_t>(values.size()), median[at],
                              *std::min_element(values.begin(), values.end())});
  }
  std::map<int, LinkReport::Rank> by_rank;
  for (const RankLink& l : links) {
    const bool slow = l.bytes_per_second < kSlowLink * median[level(l)];
    if (slow) report.slow.push_back(l);
    for (int r : {l.from, l.to}) {
      LinkReport::Rank& rank = by_rank[r];
      rank.rank = r, ++rank.links, rank.slow += slow ? 1 : 0;
    }
  }
  std::sort(report.slow.begin(), report.slow.end(),
            [](const RankLink& a, const RankLink& b) { return a.bytes_per_second < b.bytes_per_second; });
  for (const auto& [r, rank] : by_rank)
    if (rank.links > 1 && 2 * rank.slow > rank.links) report.suspects.push_back(rank);
  return report;
}

}  // namespace ltrain
