#include "runtime/bench/links_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "kernels/tensor/device.h"
#include "runtime/files/strict_json.h"
#include "runtime/launch/rank_order.h"
#include "runtime/recipe/read_file.h"

namespace ltrain {
namespace {

using nlohmann::json;
constexpr size_t kMostBytes = 64 << 20;
constexpr size_t kMostRanks = 1 << 20;
constexpr size_t kMostName = 4096;  // characters of a host or of the switches above it
constexpr double kMostRate = 1e15;  // bytes per second

/// Reads values of an untrusted file of links.
struct LinksReader {
  const std::string& name;

  [[noreturn]] void wrong(const std::string& key, const json& value, const std::string& rule) const {
    fail(ExitCode::usage, "{}: {} = {}: {}; `ltrain bench --links --output FILE` writes such a file",
         printable(name), key, printable(value.dump(-1, ' ', false, json::error_handler_t::replace), 80),
         rule);
  }
  const json& at(const json& map, const std::string& inside, const char* key) const {
    if (!map.is_object()) wrong(inside.empty() ? "the file" : inside, map, "must be an object");
    const auto it = map.find(key);
    if (it == map.end())
      fail(ExitCode::usage, "{}: {} has no key {}; `ltrain bench --links --output FILE` writes such a file",
           printable(name), inside.empty() ? "the file" : inside, key);
    return *it;
  }
  const json& list(const json& map, const char* key, size_t least, size_t most) const {
    const json& v = at(map, "", key);
    if (!v.is_array() || v.size() < least || v.size() > most)
      wrong(key, v.is_array() ? json(v.size()) : v,
            fmt::format("must be a list of {} to {} elements", least, most));
    return v;
  }
  double number(const json& map, const std::string& inside, const char* key, double least,
                double most) const {
    const json& v = at(map, inside, key);
    const double x = v.is_number() ? v.get<double>() : std::nan("");
    if (!(x >= least && x <= most))
      wrong(inside + "." + key, v, fmt::format("must be a number from {} to {}", least, most));
    return x;
  }
  int rank(const json& map, const std::string& inside, const char* key, size_t ranks) const {
    const double x = number(map, inside, key, 0, static_cast<double>(ranks - 1));
    if (x != std::floor(x)) wrong(inside + "." + key, map.at(key), "must be the number of a rank");
    return static_cast<int>(x);
  }
  std::string text(const json& map, const std::string& inside, const char* key, size_t least) const {
    const json& v = at(map, inside, key);
    const std::string* s = v.get_ptr<const std::string*>();
    if (!s || s->size() < least || s->size() > kMostName)
      wrong(inside.empty() ? key : inside + "." + key, v,
            fmt::format("must be a text of {} to {} bytes", least, kMostName));
    return *s;
  }
};

/// Number of ranks of each host. Throws unless it is the same for all, and ranks of a host follow each other.
int ranks_of_each_host(const LinksFile& f) {
  std::vector<size_t> begins;
  std::set<std::string> hosts;
  for (size_t r = 0; r < f.ranks.size(); ++r) {
    if (r > 0 && f.ranks[r].host == f.ranks[r - 1].host) continue;
    if (!hosts.insert(f.ranks[r].host).second)
      fail(ExitCode::usage, "{}: ranks[{}].host = {}: ranks of one host must follow each other",
           printable(f.file), r, printable(f.ranks[r].host, 80));
    begins.push_back(r);
  }
  begins.push_back(f.ranks.size());
  for (size_t h = 1; h + 1 < begins.size(); ++h)
    if (const size_t first = begins[1], here = begins[h + 1] - begins[h]; here != first)
      fail(ExitCode::usage,
           "{}: has {} ranks on host {} and {} on host {}: a plan needs as many on each; start `ltrain bench "
           "--links` with equal hosts",
           printable(f.file), first, printable(f.ranks[0].host, 80), here,
           printable(f.ranks[begins[h]].host, 80));
  return static_cast<int>(begins[1]);
}

/// Index in `levels` of the innermost level on which both ranks are. Without such a level: -1 within a host,
/// levels.size() between hosts. `inside`: number of levels inside a host.
int level_of(const RankLink& link, const LinksFile& f, const std::vector<NetworkLevel>& levels,
             size_t inside) {
  const bool one_host = link.from / f.ranks_on_host == link.to / f.ranks_on_host;
  const size_t end = one_host ? inside : levels.size();
  for (size_t i = 0; i < end; ++i)  // links of cards may join hosts
    if (levels[i].ranks <= 0 || link.from / levels[i].ranks == link.to / levels[i].ranks)
      return static_cast<int>(i);
  if (end > (one_host ? 0 : inside))
    return static_cast<int>(end) - 1;  // more ranks were measured than the cluster has
  return one_host ? -1 : static_cast<int>(levels.size());
}

/// Refuses a file in which links of one level of switches cross different numbers of them: its job did not
/// fill the switches as the plan's ranks do. The outermost level may have all.
void check_switches(const LinksFile& f, const std::vector<NetworkLevel>& levels, size_t inside) {
  std::map<int, const RankLink*> first;  // index: level
  for (const RankLink& l : f.links) {
    const int at = level_of(l, f, levels, inside);
    if (at < static_cast<int>(inside) || at + 1 >= static_cast<int>(levels.size())) continue;
    const RankLink*& one = first.try_emplace(at, &l).first->second;
    const auto apart = [&](const RankLink& x) {
      return levels_between(f.ranks[static_cast<size_t>(x.from)], f.ranks[static_cast<size_t>(x.to)]);
    };
    if (apart(*one) == apart(l)) continue;
    const auto hosts = [&](const RankLink& x) {
      return fmt::format("{} and {}", printable(f.ranks[static_cast<size_t>(x.from)].host, 80),
                         printable(f.ranks[static_cast<size_t>(x.to)].host, 80));
    };
    fail(ExitCode::usage,
         "--links {}: hosts {} and hosts {} are {} and {} levels of switches apart, and the plan has both "
         "pairs on its level {}; measure with hosts that fill the switches",
         printable(f.file), hosts(*one), hosts(l), apart(*one), apart(l),
         levels[static_cast<size_t>(at)].name);
  }
}

/// Rates of the levels by level_of().
std::map<int, MeasuredLevel> rates_by_level(const LinksFile& f, const LinkReport& report,
                                            const std::vector<NetworkLevel>& levels, size_t inside) {
  std::map<int, std::vector<double>> rates;
  for (const RankLink& l : f.links) rates[level_of(l, f, levels, inside)].push_back(l.bytes_per_second);
  std::map<int, MeasuredLevel> out;
  for (auto& [at, values] : rates) {
    MeasuredLevel& m = out[at];
    const bool named = at >= 0 && at < static_cast<int>(levels.size());
    m.name = named ? levels[static_cast<size_t>(at)].name : at < 0 ? "within a host" : "between hosts";
    m.links = static_cast<int64_t>(values.size());
    m.lowest = *std::min_element(values.begin(), values.end());
    m.bytes_per_second = median_rate(std::move(values));
  }
  for (const RankLink& l : report.slow) ++out[level_of(l, f, levels, inside)].slow;
  return out;
}

void check_shape(const MachineProfile& p, const LinksFile& f, DeviceKind device, int ranks_on_host) {
  if (f.device != device)
    fail(ExitCode::usage,
         "--links {}: was measured with --device {}, and the plan has device: {}; measure with `ltrain bench "
         "--links --device {}`",
         printable(f.file), device_name(f.device), device_name(device), device_name(device));
  if (f.ranks_on_host != ranks_on_host)
    fail(
        ExitCode::usage,
        "--links {}: was measured with {} rank{} on a host, which shared its links, and the plan has {} on a "
        "host; start `ltrain bench --links` with {} on each host",
        printable(f.file), f.ranks_on_host, f.ranks_on_host == 1 ? "" : "s", ranks_on_host, ranks_on_host);
  for (const NetworkLevel& level : p.levels)
    if (level.parts > 1)
      fail(ExitCode::usage,
           "--links {}: says nothing of sites, and {} has {} of them; leave out --links, or plan one site",
           printable(f.file), p.source, level.parts);
  if (!p.site_profiles.empty())
    fail(ExitCode::usage,
         "--links {}: has the links of one kind of machine, and {} has several (site_profiles); plan each "
         "with its own profile",
         printable(f.file), printable(p.source));
}

}  // namespace

std::string links_file_json(const std::vector<RankLink>& links, const LinkReport& report,
                            const std::vector<RankLocation>& ranks, DeviceKind device) {
  nlohmann::ordered_json j{{"schema", kLinksFormat}, {"device", device_name(device)}};
  for (const RankLocation& r : ranks) j["ranks"].push_back({{"host", r.host}, {"switches", r.switches}});
  for (const LinkClass& c : report.classes)
    j["classes"].push_back({{"level", c.level},
                            {"links", c.links},
                            {"median_bytes_per_second", c.median},
                            {"lowest_bytes_per_second", c.lowest}});
  const auto list = [](const std::vector<RankLink>& all) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const RankLink& l : all)
      out.push_back({{"from", l.from}, {"to", l.to}, {"bytes_per_second", l.bytes_per_second}});
    return out;
  };
  j["links"] = list(links), j["slow"] = list(report.slow), j["suspects"] = nlohmann::ordered_json::array();
  for (const LinkReport::Rank& r : report.suspects)
    j["suspects"].push_back({{"rank", r.rank}, {"slow", r.slow}, {"links", r.links}});
  return j.dump();
}

LinksFile parse_links(const std::string& text, const std::string& name) {
  const LinksReader read{name};
  std::string error;
  const json j = data::parse_strict(text, 8, error);
  if (!error.empty()) fail(ExitCode::usage, "{}: {}", printable(name), error);
  if (const json& schema = read.at(j, "", "schema"); schema != kLinksFormat)
    read.wrong("schema", schema, fmt::format("must be {}", kLinksFormat));
  LinksFile f;
  f.file = name;
  const std::string device = read.text(j, "", "device", 1);
  if (device != "cpu" && device != "cuda") read.wrong("device", device, "must be cpu or cuda");
  f.device = device == "cpu" ? DeviceKind::cpu : DeviceKind::cuda;
  for (const json& r : read.list(j, "ranks", 2, kMostRanks)) {
    const std::string key = fmt::format("ranks[{}]", f.ranks.size());
    f.ranks.push_back({read.text(r, key, "host", 1), read.text(r, key, "switches", 0)});
  }
  f.ranks_on_host = ranks_of_each_host(f);
  for (const json& l : read.list(j, "links", 1, kMostBytes)) {
    const std::string key = fmt::format("links[{}]", f.links.size());
    RankLink link{.from = read.rank(l, key, "from", f.ranks.size()),
                  .to = read.rank(l, key, "to", f.ranks.size()),
                  .bytes_per_second = read.number(l, key, "bytes_per_second", 1, kMostRate)};
    if (link.from == link.to) read.wrong(key, l, "must join two ranks");
    f.links.push_back(link);
  }
  return f;
}

LinksFile read_links(const std::string& path) {
  std::string text;
  if (const std::string error = recipe::read_small_file(path, text, kMostBytes); !error.empty())
    fail(ExitCode::usage, "--links {}: {}; `ltrain bench --links --output FILE` writes such a file",
         printable(path), error);
  return parse_links(text, path);
}

void price_by_links(MachineProfile& p, const LinksFile& f, DeviceKind device, int ranks_on_host) {
  check_shape(p, f, device, ranks_on_host);
  const LinkReport report = judge_links(f.links, f.ranks);
  const size_t inside = p.device ? std::min(p.device->links.size(), p.levels.size()) : 0;
  const std::vector<NetworkLevel> levels =
      ProfileCost::levels_of(p.levels, f.ranks_on_host, static_cast<int>(f.ranks.size()));
  check_switches(f, levels, inside);
  const int in_hosts = static_cast<int>(inside);
  bool network = false, links = false;
  p.links.file = printable(f.file);
  p.source += fmt::format(", with links of {}", p.links.file);
  for (const auto& [at, m] : rates_by_level(f, report, levels, inside)) {
    const std::string source =
        fmt::format("{}: median of {} link{}", p.links.file, m.links, m.links == 1 ? "" : "s");
    if (at >= 0 && at < static_cast<int>(levels.size())) {
      NetworkLevel& level = p.levels[static_cast<size_t>(at)];
      level.bytes_per_second = {m.bytes_per_second, FigureSource::measured, source, true};
      level.sustained = {1, FigureSource::measured, source, true};
      level.ranks_a_link = 1;  // all ranks of a host sent at the same time
      level.all_reduce = {};
    }
    // The figures for prices without levels are those of the innermost one.
    if (at < in_hosts && !links) {
      links = true;
      p.link_bytes_per_second = m.bytes_per_second;
      p.collectives.clear();
    }
    if (at >= in_hosts && !network) {
      network = p.network_given = true;
      p.adapter_bytes_per_second = m.bytes_per_second;
      p.network_bytes_per_second = m.bytes_per_second * ranks_on_host;
      p.network_source = "measured in " + source;
    }
    p.links.levels.push_back(m);
  }
  if (report.slow.empty()) return;
  const auto text = [&](int rank) {
    return fmt::format("rank {} on host {}", rank, printable(f.ranks[static_cast<size_t>(rank)].host, 80));
  };
  const RankLink& slowest = report.slow[0];
  p.links.slowest = fmt::format("{:.3f} GB/s between {} and {}", slowest.bytes_per_second * 1e-9,
                                text(slowest.from), text(slowest.to));
}

}  // namespace ltrain
