// Rules of offload. Folders of a machine are checked before the start (runtime/check/check_offload.h).
#include <tuple>

#include "base/error.h"
#include "parallel/optim/optimizer.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {
namespace {

/// Checks that device, fraction and path of a section agree.
void place_rules(const std::string& section, const OffloadPlace& o, const BrokenRule& broken) {
  const std::string device = section + ".device", fraction = section + ".fraction", path = section + ".path";
  if (!o.on()) {
    if (o.fraction != 1.0) broken(fraction, "nothing is offloaded with device: none; remove the key", {});
    return;
  }
  if (o.fraction == 0)
    broken(fraction,
           fmt::format("nothing is offloaded, and {} is {}; nearest valid value: 1.0, or {}: none", device,
                       o.device, device),
           {device});
  if (o.device == OffloadDevice::nvme && !o.path)
    broken(device, fmt::format("nvme needs {}, a folder of the file system that takes the files", path),
           {path});
}

/// Rules of updates that pass over experts without tokens.
void untouched_rules(const Recipe& r, const BrokenRule& broken) {
  if (!r.offload.skip_untouched_experts) return;
  const auto refuse = [&](bool is, const char* key, const std::string& value, const char* why,
                          const char* instead) {
    if (is)
      broken("offload.optimizer.skip_untouched_experts",
             fmt::format("{}: {} {}; nearest valid value: false, or {}: {}", key, value, why, key, instead),
             {key});
  };
  if (r.model.moe.num_experts == 0)
    broken("offload.optimizer.skip_untouched_experts",
           "model.moe.num_experts: 0 has no experts; nearest valid value: false", {"model.moe.num_experts"});
  refuse(r.offload.update != OffloadUpdate::device, "offload.optimizer.update",
         fmt::format("{}", r.offload.update), "updates all states where they lie", "device");
  refuse(r.train.ema_decay > 0, "train.ema_decay", fmt::format("{}", r.train.ema_decay),
         "averages the weights of all experts in each step", "0");
  refuse(r.parallel.grad_reduce_dtype == GradReduceDtype::int8 ||
             r.parallel.grad_reduce_dtype == GradReduceDtype::sign,
         "parallel.grad_reduce_dtype", fmt::format("{}", r.parallel.grad_reduce_dtype),
         "adds rounding errors of earlier steps to gradients that are zero", "fp32");
  refuse(r.replicas.on(), "replicas.count", fmt::format("{}", r.replicas.count), "has not been tried with it",
         "0");
}

}  // namespace

void offload_rules(const Recipe& r, const BrokenRule& broken) {
  const Offload& o = r.offload;
  place_rules("offload.optimizer", o.optimizer, broken);
  place_rules("offload.params", o.params, broken);
  place_rules("offload.activations", o.activations, broken);
  for (const auto& [device, of] :
       {std::pair("offload.optimizer.device", &o.optimizer), std::pair("offload.params.device", &o.params)})
    if (const auto [rule, place] = not_by_element(r); of->on() && !rule.empty())
      broken(device,
             fmt::format("is for {}, whose updates look at one element at a time, and {} has {}; nearest "
                         "valid value: none, or optimizer.kind: adamw",
                         by_element_names(), place, rule),
             {place});
  if (o.params.on() && !r.parallel.sharding().shards_weights())
    broken("offload.params.device",
           fmt::format("weights leave between gathers, and parallel.zero_stage: {} keeps them whole; nearest "
                       "valid value: none, or parallel.zero_stage: 3",
                       r.parallel.zero_stage),
           {"parallel.zero_stage"});
  untouched_rules(r, broken);
  if (!o.activations.on())
    for (const auto& [tensor, save_policy] : r.recompute.tensors)
      if (save_policy == SavePolicy::offload)
        broken("recompute.tensors",
               fmt::format("offload of {} needs a place, and offload.activations.device is none; nearest "
                           "valid value: offload.activations: {{device: cpu}}; or keep it",
                           block_tensor_name(tensor)),
               {"offload.activations.device"});
}

/// Rules of updates on the host of a GPU.
static void host_update_rules(const Recipe& r, const BrokenRule& broken) {
  if (r.offload.update == OffloadUpdate::device) return;
  const std::string update = "offload.optimizer.update";
  if (r.offload.optimizer.device == OffloadDevice::nvme)
    broken(update,
           "the host updates states in its memory, and offload.optimizer.device: nvme has them in files; "
           "nearest valid value: device, or offload.optimizer.device: cpu",
           {"offload.optimizer.device"});
  if (r.offload.optimizer.device == OffloadDevice::automatic && r.offload.update == OffloadUpdate::cpu)
    broken(update,
           "offload.optimizer.device: auto may leave no state to the host; nearest valid value: auto, or "
           "offload.optimizer.device: cpu",
           {"offload.optimizer.device"});
  if (r.offload.params.on())
    broken(update,
           fmt::format("the host sends new weights to the GPU, and offload.params.device: {} keeps them "
                       "elsewhere; nearest valid value: device, or offload.params.device: none",
                       r.offload.params.device),
           {"offload.params.device"});
  if (r.train.ema_decay > 0)
    broken(
        update,
        fmt::format("train.ema_decay: {} averages master weights on the GPU, where the host's do not come; "
                    "nearest valid value: device, or train.ema_decay: 0",
                    r.train.ema_decay),
        {"train.ema_decay"});
}

void offload_device_rules(const Recipe& r, const BrokenRule& broken) {
  if (device_of(r) != DeviceKind::cpu) return host_update_rules(r, broken);
  for (const auto& [section, what, place] :
       {std::tuple("offload.optimizer", "optimizer states", &r.offload.optimizer),
        std::tuple("offload.params", "weights", &r.offload.params),
        std::tuple("offload.activations", "activations", &r.offload.activations)})
    if (place->device == OffloadDevice::automatic && !place->path)
      broken(
          fmt::format("{}.device", section),
          fmt::format("steps run on the CPU, where files alone are another place, and {0}.path is not given; "
                      "nearest valid value: none, or auto with {0}.path",
                      section),
          {"device"});
    else if (place->device == OffloadDevice::cpu)
      broken(fmt::format("{}.device", section),
             fmt::format("steps run on the CPU, whose memory has the {} already; nearest valid value: none, "
                         "or nvme with {}.path",
                         what, section),
             {"device"});
}

}  // namespace ltrain::recipe
