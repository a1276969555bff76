// Rules of recomputation.
#include "base/error.h"
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
  for (const auto& [tensor, save_policy] : c.tensors) {
    if (can_recompute(tensor)) continue;
    const std::string name(block_tensor_name(tensor));
    if (r.model.moe.num_experts == 0)
      broken("recompute.tensors",
             fmt::format("{} is of experts, which a dense model has not; remove it, or give "
                         "model.moe.num_experts",
                         name),
             {"model.moe.num_experts"});
    else if (save_policy == SavePolicy::recompute)
      broken("recompute.tensors",
             name + " is of rows that have travelled, and is not made again; keep it, or offload it", {});
  }
  for (const RecomputeModule m : c.modules) {
    using enum RecomputeModule;
    const bool experts = m == moe || m == moe_act, dense = m == mlp || m == mlp_act;
    if (experts && r.model.moe.num_experts == 0)
      broken("recompute.modules",
             fmt::format("{} is of experts, which a dense model has not; nearest valid value: [{}]", m,
                         m == moe ? mlp : mlp_act),
             {"model.moe.num_experts"});
    if (dense && r.model.moe.num_experts > 0)
      broken("recompute.modules",
             fmt::format("{} is of a dense model, and experts are {}; nearest valid value: [{}]", m,
                         m == mlp ? moe : moe_act, m == mlp ? moe : moe_act),
             {"model.moe.num_experts"});
  }
  bool recomputes = !c.modules.empty();
  for (const auto& [tensor, save_policy] : c.tensors)
    recomputes = recomputes || save_policy != SavePolicy::keep;
  if (c.granularity == RecomputeGranularity::selective && !recomputes)
    broken(kind, "nothing is selected; give recompute.modules, such as [core_attn], or recompute.tensors",
           {});
}

}  // namespace ltrain::recipe
