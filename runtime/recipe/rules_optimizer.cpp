// Rules of the optimizer: what each needs of the layout and of the precision.
#include "kernels/core/error.h"
#include "runtime/recipe/rules_parts.h"

namespace ltrain::recipe {

void optimizer_rules(const Recipe& r, const BrokenRule& broken) {
  const Optimizer& o = r.optimizer;
  const std::string kind = "optimizer.kind", groups = "optimizer.groups";
  const auto where = [&](const char* rule) { return o.kind == rule ? kind : groups; };
  if (o.uses("muon") && r.parallel.tensor > 1 && r.parallel.tensor_mode != "1d")
    broken(where("muon"),
           fmt::format(
               "muon multiplies whole rows or whole columns of a matrix, and parallel.tensor_mode: {} cuts "
               "both; nearest valid value: adamw, or parallel.tensor_mode: 1d",
               r.parallel.tensor_mode),
           {"parallel.tensor_mode", "parallel.tensor"});
  if (o.uses("adamw8bit") && r.precision == Precision::fp64)
    broken(where("adamw8bit"),
           "has moments of 8 bits for fp32 weights; nearest valid value: adamw, or precision: fp32",
           {"precision"});
}

}  // namespace ltrain::recipe
