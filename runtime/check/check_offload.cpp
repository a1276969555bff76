#include "runtime/check/check_offload.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/bytes_text.h"
#include "runtime/checkpoint/files.h"

namespace ltrain {
namespace {

/// Returns the device of a folder. Refuses a folder that cannot take files.
dev_t check_folder(const std::string& key, const std::string& path) {
  struct stat s = {};
  const auto refuse = [&](const std::string& what) {
    fail(ExitCode::usage,
         "{}.path = {}: {}; give a folder that exists, that you may write to, and that has room", key, path,
         what);
  };
  if (stat(path.c_str(), &s) != 0) refuse(std::strerror(errno));
  if (!S_ISDIR(s.st_mode)) refuse("is not a folder");
  if (access(path.c_str(), W_OK | X_OK) != 0) refuse(std::strerror(errno));
  return s.st_dev;
}

}  // namespace

void check_offload(const Recipe& r, const Plan& plan, int ranks) {
  struct Use {
    std::string key, what;
    const OffloadPlace& place;
    int64_t OffloadedBytes::*bytes;
  };
  const Use uses[] = {
      {"offload.optimizer", "optimizer states", r.offload.optimizer, &OffloadedBytes::optimizer},
      {"offload.params", "weights", r.offload.params, &OffloadedBytes::params},
      {"offload.activations", "activations", r.offload.activations, &OffloadedBytes::activations}};
  std::map<dev_t, int64_t> wanted;  // bytes needed on each file system by the previous keys
  for (const Use& use : uses) {
    if (use.place.device != OffloadDevice::nvme) continue;
    const std::string& path = *use.place.path;
    int64_t& others = wanted[check_folder(use.key, path)];
    int64_t each = 0;
    for (const RankPlan& p : plan.ranks) each = std::max(each, p.offloaded.*use.bytes);
    const int64_t need = each * ranks, have = free_bytes(path);
    if (have < others + need)
      fail(ExitCode::storage,
           "{}.path = {}: {} of {} ({} rank{} of this host, {} each){}, and the file system has {} free; "
           "free some, lower {}.fraction, or give another path",
           use.key, path, bytes_text(need), use.what, ranks, ranks == 1 ? "" : "s", bytes_text(each),
           others > 0 ? fmt::format(" beside {} of what else is offloaded there", bytes_text(others)) : "",
           bytes_text(have), use.key);
    others += need;
  }
}

}  // namespace ltrain
