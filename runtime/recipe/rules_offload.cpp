// Rules of what lies outside of the device's memory. What depends on the machine is checked before the start
// (runtime/train/check_offload.h).
#include "kernels/core/error.h"
#include "runtime/recipe/rules_parts.h"

namespace ltrain::recipe {

void offload_rules(const Recipe& r, const BrokenRule& broken) {
  const Offload& o = r.offload;
  const std::string device = "offload.optimizer.device";
  if (o.optimizer_device == "none") {
    if (o.optimizer_fraction != 1.0)
      broken("offload.optimizer.fraction", "nothing is offloaded with device: none; remove the key", {});
    return;
  }
  if (o.optimizer_fraction == 0)
    broken("offload.optimizer.fraction",
           fmt::format("nothing is offloaded, and {} is {}; nearest valid value: none for the latter", device,
                       o.optimizer_device),
           {device});
  if (o.optimizer_device == "nvme" && !o.optimizer_path)
    broken(device, "nvme needs offload.optimizer.path, a folder of the file system that takes the files",
           {"offload.optimizer.path"});
  const auto [rule, place] = not_by_element(r);
  if (!rule.empty())
    broken(device,
           fmt::format(
               "is for adamw, adam, sgd and lion, whose updates look at one element at a time, and {} has "
               "{}; nearest valid value: none",
               place, rule),
           {place});
}

}  // namespace ltrain::recipe
