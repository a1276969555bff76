#include "runtime/launch/topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include <fmt/core.h>

namespace ltrain {
namespace {

namespace fs = std::filesystem;

constexpr int kMostCores = CPU_SETSIZE;

std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code ignored;
  for (fs::directory_iterator i(folder, ignored), end; !ignored && i != end; i.increment(ignored))
    out.push_back(i->path());
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> parts(const std::string& path) {
  std::vector<std::string> out;
  for (const fs::path& p : fs::path(path)) out.push_back(p.string());
  return out;
}

/// Number of leading PCI devices that both paths share.
size_t common_devices(const std::string& a, const std::string& b) {
  const std::vector<std::string> x = parts(a), y = parts(b);
  size_t common = 0;
  for (size_t i = 0; i < std::min(x.size(), y.size()) && x[i] == y[i]; ++i)
    if (x[i].starts_with("pci") || x[i].find(':') != std::string::npos) ++common;
  return common;
}

/// Nearest PCI device on a path of /sys/devices. A virtual device (virtio2) is below it.
std::string bus_id_on(const std::string& path) {
  const std::vector<std::string> all = parts(path);
  for (size_t i = all.size(); i-- > 0;)
    if (std::count(all[i].begin(), all[i].end(), ':') == 2) return all[i];
  return "";
}

}  // namespace

std::vector<int> cores_of(std::string_view text) {
  std::vector<int> out;
  const char *at = text.data(), *end = at + text.size();
  while (at < end) {
    int first = 0, last = 0;
    auto [next, bad] = std::from_chars(at, end, first);
    if (bad != std::errc() || first < 0 || first >= kMostCores) return out;
    last = first;
    if (next < end && *next == '-') {
      auto [after, wrong] = std::from_chars(next + 1, end, last);
      if (wrong != std::errc() || last < first || last >= kMostCores) return out;
      next = after;
    }
    for (int c = first; c <= last; ++c) out.push_back(c);
    if (next == end || *next != ',') return out;
    at = next + 1;
  }
  return out;
}

std::string cores_text(const std::vector<int>& cores) {
  std::string out;
  for (size_t i = 0; i < cores.size();) {
    size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    out += fmt::format("{}{}", out.empty() ? "" : ",", cores[i]);
    if (last > i) out += fmt::format("-{}", cores[last]);
    i = last + 1;
  }
  return out;
}

std::vector<NumaNode> numa_nodes(const std::string& root) {
  std::vector<NumaNode> out;
  for (const int id : cores_of(line_of(root + "/sys/devices/system/node/online")))
    out.push_back(
        {id, cores_of(line_of(fmt::format("{}/sys/devices/system/node/node{}/cpulist", root, id)))});
  return out;
}

PciDevice pci_device(std::string bus_id, const std::string& root) {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const fs::path link = root + "/sys/bus/pci/devices/" + bus_id;
  PciDevice out;
  out.bus_id = bus_id;
  std::error_code missing;
  const fs::path path = fs::canonical(link, missing);
  if (bus_id.empty() || missing) return out;
  out.path = path.string();
  const std::string numa = line_of(path / "numa_node");
  if (!numa.empty()) std::from_chars(numa.data(), numa.data() + numa.size(), out.numa);
  out.cores = cores_of(line_of(path / "local_cpulist"));
  return out;
}

std::vector<NetworkCard> network_cards(const std::string& root) {
  std::vector<NetworkCard> out;
  std::set<std::string> named;
  for (const char* kind : {"/sys/class/infiniband", "/sys/class/net"})
    for (const fs::path& entry : entries(root + kind)) {
      std::error_code missing;
      const fs::path device = fs::canonical(entry / "device", missing);
      if (missing) continue;
      const std::string bus_id = bus_id_on(device.string());
      if (bus_id.empty() || !named.insert(bus_id).second) continue;
      out.push_back({entry.filename().string(), pci_device(bus_id, root)});
    }
  return out;
}

std::vector<std::string> nearest_cards(const PciDevice& device, const std::vector<NetworkCard>& cards) {
  size_t most = 0;
  for (const NetworkCard& c : cards) most = std::max(most, common_devices(device.path, c.device.path));
  std::vector<std::string> out;
  for (const NetworkCard& c : cards)
    if (most > 0 ? common_devices(device.path, c.device.path) == most
                 : device.numa >= 0 && c.device.numa == device.numa)
      out.push_back(c.name);
  return out;
}

std::vector<std::vector<int>> link_groups(const std::vector<std::vector<bool>>& linked) {
  const size_t n = linked.size();
  std::vector<int> group(n, -1);
  std::vector<std::vector<int>> out;
  for (size_t first = 0; first < n; ++first) {
    if (group[first] >= 0) continue;
    const int id = static_cast<int>(out.size());
    out.emplace_back();
    std::vector<size_t> open{first};
    group[first] = id;
    while (!open.empty()) {
      const size_t a = open.back();
      open.pop_back();
      out.back().push_back(static_cast<int>(a));
      for (size_t b = 0; b < n; ++b)
        if (group[b] < 0 && (linked[a][b] || linked[b][a])) group[b] = id, open.push_back(b);
    }
    std::sort(out.back().begin(), out.back().end());
  }
  return out;
}

std::vector<int> device_order(const std::vector<std::vector<bool>>& linked, const std::vector<int>& numa) {
  const auto nearer = [&](int a, int b) {
    return std::pair(numa[static_cast<size_t>(a)], a) < std::pair(numa[static_cast<size_t>(b)], b);
  };
  std::vector<std::vector<int>> groups = link_groups(linked);
  for (std::vector<int>& g : groups) std::sort(g.begin(), g.end(), nearer);
  std::sort(groups.begin(), groups.end(), [&](const auto& a, const auto& b) { return nearer(a[0], b[0]); });
  std::vector<int> out;
  for (const std::vector<int>& g : groups) out.insert(out.end(), g.begin(), g.end());
  return out;
}

std::vector<int> bind_to_cores(const std::vector<int>& cores) {
  cpu_set_t may, near;
  CPU_ZERO(&may);
  CPU_ZERO(&near);
  if (sched_getaffinity(0, sizeof may, &may) != 0) return {};
  std::vector<int> kept;
  for (const int c : cores)
    if (c >= 0 && c < kMostCores && CPU_ISSET(c, &may)) {
      CPU_SET(c, &near);
      kept.push_back(c);
    }
  if (kept.empty() || sched_setaffinity(0, sizeof near, &near) != 0) return {};
  return kept;
}

}  // namespace ltrain
