#include "runtime/launch/cgroup.h"

#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <mutex>
#include <vector>

namespace ltrain {
namespace {

/// Folder at which a controller is mounted, and the group of this process below it.
struct Hierarchy {
  std::string mount, group;
  bool unified = false;  ///< version 2
};

/// Hierarchy of "memory" or "cpu". Version 1 if the controller is still mounted there.
std::optional<Hierarchy> hierarchy(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::optional<Hierarchy> unified;
  for (std::string line; std::getline(file, line);) {
    const size_t a = line.find(':'), b = line.find(':', a + 1);  // "4:cpu,cpuacct:/group", "0::/group"
    if (a == std::string::npos || b == std::string::npos) continue;
    const std::string names = "," + line.substr(a + 1, b - a - 1) + ",", group = line.substr(b + 1);
    if (names == ",,") unified = Hierarchy{root + "/sys/fs/cgroup", group, true};
    if (names.find("," + controller + ",") == std::string::npos) continue;
    // The folder has all names of the line, or each name is a link to it.
    return Hierarchy{root + "/sys/fs/cgroup/" + controller, group, false};
  }
  return unified;
}

/// Folders of a group and its parents. In a container that does not see its own group, only the mount.
std::vector<std::string> folders(const Hierarchy& h) {
  std::vector<std::string> out;
  std::string group = h.group.find("..") == std::string::npos ? h.group : "";
  while (group.size() > 1) {
    out.push_back(h.mount + group);
    group = group.substr(0, group.rfind('/'));
  }
  out.push_back(h.mount);
  return out;
}

/// Calls f with the stream of the named file of each group.
void each_file(const Hierarchy& h, const std::string& name, const std::function<void(std::istream&)>& f) {
  for (const std::string& folder : folders(h))
    if (std::ifstream file(folder + "/" + name); file) f(file);
}

std::optional<int64_t> memory_limit(const std::string& root) {
  const auto h = hierarchy(root, "memory");
  if (!h) return {};
  std::optional<int64_t> lowest;
  each_file(*h, h->unified ? "memory.max" : "memory.limit_in_bytes", [&](std::istream& in) {
    int64_t bytes = 0;  // "max" is not a number; version 1 uses a number close to 2^63
    if (in >> bytes && bytes > 0 && bytes < int64_t{1} << 60)
      lowest = std::min(lowest.value_or(bytes), bytes);
  });
  return lowest;
}

std::optional<double> core_quota(const std::string& root) {
  const auto h = hierarchy(root, "cpu");
  if (!h) return {};
  std::optional<double> lowest;
  const auto take = [&](double quota, double period) {
    if (quota > 0 && period > 0) lowest = std::min(lowest.value_or(quota / period), quota / period);
  };
  if (h->unified) {
    each_file(*h, "cpu.max", [&](std::istream& in) {
      double quota = 0, period = 0;
      if (in >> quota >> period) take(quota, period);  // "max 100000" means no limit
    });
    return lowest;
  }
  for (const std::string& folder : folders(*h)) {
    std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
    double quota = 0, period = 0;
    if (quota_file >> quota && period_file >> period) take(quota, period);
  }
  return lowest;
}

std::optional<int64_t> value_of(std::istream& in, const std::string& wanted) {
  std::string key;
  int64_t value = 0;
  while (in >> key >> value)
    if (key == wanted) return value;
  return {};
}

}  // namespace

CgroupLimits cgroup_limits(const std::string& root) { return {memory_limit(root), core_quota(root)}; }

std::optional<int64_t> out_of_memory_kills(const std::string& root) {
  std::optional<int64_t> kills;
  if (const auto h = hierarchy(root, "memory"))
    each_file(*h, h->unified ? "memory.events" : "memory.oom_control", [&](std::istream& in) {
      if (!kills) kills = value_of(in, "oom_kill");
    });
  if (kills) return kills;
  std::ifstream host(root + "/proc/vmstat");
  return value_of(host, "oom_kill");
}

namespace {

/// Limits of this process's own groups. Each plan of a search queries them, so values read from files are
/// cached for a second.
CgroupLimits own_limits() {
  using Clock = std::chrono::steady_clock;
  static std::mutex mutex;
  static CgroupLimits limits;
  static Clock::time_point read;
  const std::scoped_lock lock(mutex);
  const Clock::time_point now = Clock::now();
  if (read == Clock::time_point() || now - read > std::chrono::seconds(1))
    limits = cgroup_limits(), read = now;
  return limits;
}

}  // namespace

int64_t host_memory_bytes() {
  struct sysinfo info {};
  const int64_t bytes = sysinfo(&info) == 0 ? static_cast<int64_t>(info.totalram) * info.mem_unit : 0;
  return std::min(bytes, own_limits().memory_bytes.value_or(bytes));
}

int usable_cores() {
  cpu_set_t set;
  int cores = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const auto quota = own_limits().cores) cores = std::min(cores, static_cast<int>(std::floor(*quota)));
  return std::max(1, cores);
}

}  // namespace ltrain
