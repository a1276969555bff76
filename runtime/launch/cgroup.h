// Limits of the control groups of this process, in version 1 or 2 of the kernel's interface. All groups from
// the process's own up to the root count: under Slurm, Kubernetes and containers the job's limit is on one of
// them, and rarely on the root's.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace ltrain {

struct CgroupLimits {
  std::optional<int64_t> memory_bytes;  ///< lowest limit
  std::optional<double> cores;          ///< lowest quota / period
};

/// `root`: prefix of /proc and /sys, for tests.
CgroupLimits cgroup_limits(const std::string& root = "");

/// Number of processes that the kernel has killed for lack of memory, from the nearest group that counts
/// them, else from this host; empty if no counter exists.
std::optional<int64_t> out_of_memory_kills(const std::string& root = "");

/// Memory of this host in bytes, or the lowest limit of a control group.
int64_t host_memory_bytes();

/// Cores that this process may use: its affinity, or the lowest quota of a control group, rounded down.
int usable_cores();

}  // namespace ltrain
