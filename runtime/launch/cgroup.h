// What the control groups of this process leave to it: the limits of every group from its own up to the root,
// of version 1 or 2 of the kernel's interface. Under Slurm, Kubernetes and containers the job's limit is on
// one of them, and rarely on the root's.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace ltrain {

struct CgroupLimits {
  std::optional<int64_t> memory_bytes;  ///< the lowest
  std::optional<double> cores;          ///< the lowest quota over period
};

/// `root`: what /proc and /sys are below, for tests.
CgroupLimits cgroup_limits(const std::string& root = "");

/// How many processes the kernel has killed for want of memory in the nearest group that counts them, else on
/// this host; empty where nobody counts.
std::optional<int64_t> out_of_memory_kills(const std::string& root = "");

/// Memory of this host in bytes, or the lowest limit of a control group.
int64_t host_memory_bytes();

/// Cores that this process may use: its affinity, or the lowest quota of a control group, rounded down.
int usable_cores();

}  // namespace ltrain
