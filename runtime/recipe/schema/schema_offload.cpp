// Keys of offload.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {
namespace {

struct Words {
  const char *device, *fraction;
};

/// Adds device, fraction and path of a section. Get: Recipe& to its OffloadPlace&.
template <class Get>
void add_place(std::vector<Key>& t, const std::string& section, Get get, const Words& words,
               std::vector<std::string> aliases = {}) {
  t.push_back(choice(
      section + ".device", [get](Recipe & r) -> auto& { return get(r).device; }, {}, words.device));
  t.push_back(
      number(
          section + ".fraction", [get](Recipe & r) -> auto& { return get(r).fraction; }, words.fraction)
          .between(0, 1));
  Key path = text(
      section + ".path", [get](Recipe & r) -> auto& { return get(r).path; },
      "nvme, auto: folder for the files.");
  path.alias(std::move(aliases));
  path.when(section + ".device: nvme or auto", true, [get](const Recipe& r) {
    const OffloadDevice device = get(const_cast<Recipe&>(r)).device;
    return device == OffloadDevice::nvme || device == OffloadDevice::automatic;
  });
  t.push_back(std::move(path));
}

}  // namespace

void add_offload_keys(std::vector<Key>& t) {
  add_place(
      t, "offload.optimizer", LT_MEMBER(offload.optimizer),
      {"Storage of optimizer state (moments, master weights) between updates. cpu: host memory, for a "
       "GPU. nvme: files, for a GPU or the CPU. auto: none, cpu, or nvme with a path, whose planned step "
       "is the shortest that fits.",
       "Share of the state that is offloaded."},
      {"nvme_path"});
  t.push_back(choice("offload.optimizer.update", LT_MEMBER(offload.update), {},
                     "Cores that update offloaded states. device: states move to the GPU and back. cpu: with "
                     "device: cpu, the host updates them; gradients move out, and new weights in. auto: the "
                     "faster one by the plan. On the CPU all are one.")
                  .when("offload.optimizer.device other than none", true,
                        [](const Recipe& r) { return r.offload.optimizer.on(); }));
  t.push_back(truth("offload.optimizer.skip_untouched_experts", LT_MEMBER(offload.skip_untouched_experts),
                    "MoE: experts that no token of a step chose are not updated, and their states are not "
                    "moved. This changes the result: their moments and weights stay as they are.")
                  .when("offload.optimizer.device other than none", true,
                        [](const Recipe& r) { return r.offload.optimizer.on(); }));
  add_place(t, "offload.params", LT_MEMBER(offload.params),
            {"parallel.zero_stage: 3: storage of a rank's weight shards between gathers. cpu, nvme: as for "
             "the optimizer, auto too.",
             "Share of the buckets whose weights are offloaded."});
  add_place(t, "offload.activations", LT_MEMBER(offload.activations),
            {"Storage of saved activations until the backward: all of them, or those named by "
             "recompute.tensors. cpu, nvme, auto: as for the optimizer.",
             "Share of a stage's layers whose activations are offloaded, starting with the first layer."});
}

}  // namespace ltrain::recipe
