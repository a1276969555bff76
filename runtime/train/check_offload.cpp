#include "runtime/train/check_offload.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/checkpoint/files.h"

namespace ltrain {

void check_offload(const Recipe& r, const Plan& plan, int ranks) {
  const Offload& o = r.offload;
  if (o.optimizer_device == "none") return;
  const bool cpu = device_of(r) == DeviceKind::cpu;
  if (cpu && o.optimizer_device == "cpu")
    fail(ExitCode::usage,
         "offload.optimizer.device = cpu: steps run on the CPU, where the states are already; nearest valid "
         "value: none, or nvme with offload.optimizer.path");
  if (!cpu && o.optimizer_device == "nvme")
    fail(
        ExitCode::usage,
        "offload.optimizer.device = nvme: is not in this build for steps on a GPU; nearest valid value: cpu");
  if (o.optimizer_device != "nvme") return;
  const std::string& path = *o.optimizer_path;
  struct stat s = {};
  const auto refuse = [&](const std::string& what) {
    fail(ExitCode::usage,
         "offload.optimizer.path = {}: {}; give a folder that exists, that you may write to, and that has "
         "room",
         path, what);
  };
  if (stat(path.c_str(), &s) != 0) refuse(std::strerror(errno));
  if (!S_ISDIR(s.st_mode)) refuse("is not a folder");
  if (access(path.c_str(), W_OK | X_OK) != 0) refuse(std::strerror(errno));
  int64_t each = 0;
  for (const RankPlan& p : plan.ranks) each = std::max(each, p.offloaded_bytes);
  if (const int64_t need = each * ranks, have = free_bytes(path); have < need)
    fail(
        ExitCode::storage,
        "offload.optimizer.path = {}: {} of optimizer states ({} rank{} of this host, {} each), and the file "
        "system has {} free; free some, lower offload.optimizer.fraction, or give another path",
        path, bytes_text(need), ranks, ranks == 1 ? "" : "s", bytes_text(each), bytes_text(have));
}

}  // namespace ltrain
