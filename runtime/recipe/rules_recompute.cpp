// Rules of recomputation.
#include "kernels/core/error.h"
#include "runtime/recipe/rules_parts.h"

namespace ltrain::recipe {

void recompute_rules(const Recipe& r, const Broken& broken) {
  const Recompute& c = r.recompute;
  const std::string number = "recompute.num_layers", kind = "recompute.granularity";
  const bool block = c.granularity == "full" && c.method == "block";
  if (block && !c.num_layers)
    broken("recompute.method", fmt::format("needs {}: the first layers of a stage; nearest valid value: uniform", number),
           {});
  if ((block || c.granularity == "selective") && c.num_layers && *c.num_layers == 0)
    broken(number, "sqrt spaces the inputs that recompute.granularity: full with method: uniform keeps; nearest valid "
                   "value: 1",
           {"recompute.method", kind});
  bool again = !c.modules.empty();
  for (const auto& [name, recompute] : c.tensors) again = again || recompute;
  if (c.granularity == "selective" && !again)
    broken(kind, "nothing is selected; give recompute.modules, such as [core_attn], or recompute.tensors", {});
}

}  // namespace ltrain::recipe
