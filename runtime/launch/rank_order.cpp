#include "runtime/launch/rank_order.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain {
namespace {

constexpr size_t kMostBytes = 512;    // a list of switches
constexpr size_t kMostDescribed = 8;  // switches in a line of the log

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const size_t end = std::min(text.find('.'), text.size());
    names.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return names;
}

/// Path of a rank from the outermost switch to its host. Each element contains those above it.
std::vector<std::string> path_of(const RankLocation& rank) {
  std::vector<std::string> path;
  std::string above;
  for (const std::string& name : split(rank.switches)) path.push_back(above += "." + name);
  path.push_back(above + "/" + rank.host);
  return path;
}

std::string innermost(const RankLocation& rank) {
  return rank.switches.empty() ? "unknown switches" : rank.switches;
}

}  // namespace

std::vector<int> order_by_distance(const std::vector<RankLocation>& ranks, int parts) {
  // A recipe with more sites than ranks is refused once all have joined.
  const size_t part = std::max<size_t>(1, ranks.size() / static_cast<size_t>(std::max(parts, 1)));
  std::map<std::pair<size_t, std::string>, size_t> smallest;  // rank below a switch or on a host, in its part
  std::vector<std::vector<size_t>> keys(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    keys[r].push_back(r / part);
    for (const std::string& place : path_of(ranks[r]))
      keys[r].push_back(smallest.emplace(std::pair(r / part, place), r).first->second);
    keys[r].push_back(r);
  }
  std::vector<int> order(ranks.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return keys[static_cast<size_t>(a)] < keys[static_cast<size_t>(b)]; });
  return order;
}

int levels_between(const RankLocation& a, const RankLocation& b) {
  if (a.host == b.host) return 0;
  const std::vector<std::string> x = split(a.switches), y = split(b.switches);
  size_t common = 0;
  while (common < std::min(x.size(), y.size()) && x[common] == y[common]) ++common;
  return 1 + static_cast<int>(std::max(x.size(), y.size()) - common);
}

std::string switches_above(const Variables& variables) {
  const auto value = [&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::string() : at->second;
  };
  if (const std::string given = value("LTRAIN_TOPOLOGY"); !given.empty()) {
    const std::vector<std::string> names = split(given);
    if (given.size() > kMostBytes || given.back() == '.' || printable(given, kMostBytes) != given ||
        std::any_of(names.begin(), names.end(), [](const std::string& n) { return n.empty(); }))
      fail(ExitCode::usage,
           "LTRAIN_TOPOLOGY=\"{}\": expected the names of the switches above this host, outermost first, "
           "with a "
           "point between them and at most {} bytes, e.g. spine1.leaf3",
           printable(given, 64), kMostBytes);
    return given;
  }
  const std::string address = value("SLURM_TOPOLOGY_ADDR"), pattern = value("SLURM_TOPOLOGY_ADDR_PATTERN");
  if (address.size() > kMostBytes) return "";
  // The node's own name comes last, and may contain points. The pattern has one word for each name.
  const std::vector<std::string> names = split(address), kinds = split(pattern);
  const size_t switches = kinds.empty()
                              ? names.size() - std::min<size_t>(names.size(), 1)
                              : static_cast<size_t>(std::count_if(kinds.begin(), kinds.end(),
                                                                  [](const auto& k) { return k != "node"; }));
  std::string out;
  for (size_t i = 0; i < std::min(switches, names.size()); ++i) out += (i ? "." : "") + names[i];
  return printable(out, kMostBytes);
}

std::string describe_order(const std::vector<RankLocation>& ranks, const std::vector<int>& order) {
  std::vector<std::pair<std::string, int>> switches;  // with their hosts, in the new order
  std::string host;
  size_t moved = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const RankLocation& rank = ranks[static_cast<size_t>(order[i])];
    if (order[i] != static_cast<int>(i)) ++moved;
    if (switches.empty() || switches.back().first != innermost(rank))
      switches.emplace_back(innermost(rank), 0);
    if (i == 0 || rank.host != host) ++switches.back().second;
    host = rank.host;
  }
  if (switches.size() == 1 && switches[0].first == "unknown switches")
    return fmt::format(
        "ranks in the order of their {} hosts; {} of {} ranks have another number than their "
        "launcher gave them (launch.rank_order: launcher keeps it)",
        switches[0].second, moved, order.size());
  std::string out;
  for (size_t i = 0; i < std::min(switches.size(), kMostDescribed); ++i)
    out += fmt::format("{}{} ({} host{})", i ? ", " : "", switches[i].first, switches[i].second,
                       switches[i].second == 1 ? "" : "s");
  if (switches.size() > kMostDescribed) out += fmt::format(", and {} more", switches.size() - kMostDescribed);
  return fmt::format(
      "ranks in the order of their switches: {}; {} of {} ranks have another number than their "
      "launcher gave them (launch.rank_order: launcher keeps it)",
      out, moved, order.size());
}

}  // namespace ltrain
