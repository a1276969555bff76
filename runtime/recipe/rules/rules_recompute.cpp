// Rules of recomputation.
#include "kernels/base/error.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void recompute_rules(const Recipe& r, const BrokenRule& broken) {
  const Recompute& c = r.recompute;
  const std::string number = "recompute.num_layers", kind = "recompute.granularity";
  const bool block = c.granularity == RecomputeGranularity::full && c.method == RecomputeMethod::block;
  if (block && !c.num_layers)
    broken("recompute.method",
           fmt::format("needs {}: the first layers of a stage; nearest valid value: uniform", number), {});
  if ((block || c.granularity == RecomputeGranularity::selective) && c.num_layers && *c.num_layers == 0)
    broken(number,
           "sqrt spaces the inputs that recompute.granularity: full with method: uniform keeps; nearest "
           "valid value: 1",
           {"recompute.method", kind});
  if (r.model.moe.num_experts > 0) {
    const std::string works =
        "; nearest valid value: selective, with recompute.modules: [core_attn, layernorm]";
    if (c.granularity == RecomputeGranularity::full || c.granularity == RecomputeGranularity::automatic)
      broken(kind, "would run experts a second time, and what they count with them" + works, {"model.moe"});
    for (RecomputeModule m : c.modules)
      if (m == RecomputeModule::mlp || m == RecomputeModule::mlp_act)
        broken(
            "recompute.modules",
            fmt::format("{} would run experts a second time; nearest valid value: [core_attn, layernorm]", m),
            {});
    for (const auto& [tensor, save_policy] : c.tensors) {
      if (tensor != BlockTensor::mlp_hidden && tensor != BlockTensor::mlp_activation) continue;
      const std::string name(block_tensor_name(tensor));
      if (save_policy == SavePolicy::recompute)
        broken("recompute.tensors", name + " is of experts, which do not run a second time; keep it", {});
      if (save_policy == SavePolicy::offload)
        broken("recompute.tensors", name + " is of experts, whose rows stay; keep it, and offload mlp_norm",
               {});
    }
  }
  bool recomputes = !c.modules.empty();
  for (const auto& [tensor, save_policy] : c.tensors)
    recomputes = recomputes || save_policy != SavePolicy::keep;
  if (c.granularity == RecomputeGranularity::selective && !recomputes)
    broken(kind, "nothing is selected; give recompute.modules, such as [core_attn], or recompute.tensors",
           {});
}

}  // namespace ltrain::recipe
