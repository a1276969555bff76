// Keys of what lies outside of the device's memory.
#include "runtime/recipe/key_makers.h"
#include "runtime/recipe/schema_parts.h"

namespace ltrain::recipe {

void add_offload_keys(std::vector<Key>& t) {
  t.push_back(name_choice(
      "offload.optimizer.device", LT_MEMBER(offload.optimizer_device), {"none", "cpu", "nvme"}, {},
      "Where states of the optimizer (moments, master weights) lie between updates. cpu: in "
      "the host's memory, of steps on a GPU. nvme: in files, of steps on the CPU."));
  t.push_back(number("offload.optimizer.fraction", LT_MEMBER(offload.optimizer_fraction),
                     "Part of them that lies there.")
                  .between(0, 1));
  Key path = text("offload.optimizer.path", LT_MEMBER(offload.optimizer_path),
                  "nvme: a folder of the file system that takes the files.");
  path.alias({"nvme_path"});
  path.when("offload.optimizer.device: nvme", true,
            [](const Recipe& r) { return r.offload.optimizer_device == "nvme"; });
  t.push_back(std::move(path));
  t.push_back(name_choice("offload.params.device", LT_MEMBER(offload.params_device), {"none"},
                          {"cpu", "nvme"}, "Where the weights lie."));
  t.push_back(name_choice("offload.activations.device", LT_MEMBER(offload.activations_device), {"none"},
                          {"cpu"}, "Where saved activations lie."));
}

}  // namespace ltrain::recipe
