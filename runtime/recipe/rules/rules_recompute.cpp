// Rules of recomputation.
#include "kernels/base/error.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void recompute_rules(const Recipe& r, const BrokenRule& broken) {
  const Recompute& c = r.recompute;
  const std::string number = "recompute.num_layers", kind = "recompute.granularity";
  const bool block = c.granularity == "full" && c.method == "block";
  if (block && !c.num_layers)
    broken("recompute.method",
           fmt::format("needs {}: the first layers of a stage; nearest valid value: uniform", number), {});
  if ((block || c.granularity == "selective") && c.num_layers && *c.num_layers == 0)
    broken(
        number,
        "sqrt spaces the inputs that recompute.granularity: full with method: uniform keeps; nearest valid "
        "value: 1",
        {"recompute.method", kind});
  if (r.model.moe.num_experts > 0) {
    const std::string works =
        "; nearest valid value: selective, with recompute.modules: [core_attn, layernorm]";
    if (c.granularity == "full" || c.granularity == "auto")
      broken(kind, "would run experts a second time, and what they count with them" + works, {"model.moe"});
    for (const std::string& m : c.modules)
      if (m.starts_with("mlp"))
        broken("recompute.modules",
               m + " would run experts a second time; nearest valid value: [core_attn, layernorm]", {});
    for (const auto& [name, save_policy] : c.tensors) {
      if (name != "mlp_hidden" && name != "mlp_activation") continue;
      if (save_policy == SavePolicy::recompute)
        broken("recompute.tensors", name + " is of experts, which do not run a second time; keep it", {});
      if (save_policy == SavePolicy::offload)
        broken("recompute.tensors", name + " is of experts, whose rows stay; keep it, and offload mlp_norm",
               {});
    }
  }
  bool recomputes = !c.modules.empty();
  for (const auto& [name, save_policy] : c.tensors)
    recomputes = recomputes || save_policy != SavePolicy::keep;
  if (c.granularity == "selective" && !recomputes)
    broken(kind, "nothing is selected; give recompute.modules, such as [core_attn], or recompute.tensors",
           {});
}

}  // namespace ltrain::recipe
