// Rules of 2:4 sparse matrices. Names and shapes are checked once the model is known
// (runtime/plan/sparse_plan.h, parallel/zero/sparse_masks.h).
#include "base/error.h"
#include "parallel/optim/optimizer.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void sparsity_rules(const Recipe& r, const BrokenRule& broken) {
  const SparsitySettings& s = r.sparsity;
  if (!s.on()) return;
  if (s.at_step > r.train.train_steps)
    broken("sparsity.at_step",
           fmt::format("is after the last of train.train_steps = {}; nearest valid value: {}",
                       r.train.train_steps, r.train.train_steps),
           {"train.train_steps"});
  one_axis_rule(r, broken, "sparsity.match", "[]");
  for (const auto& [device, of] : {std::pair("offload.optimizer.device", &r.offload.optimizer),
                                   std::pair("offload.params.device", &r.offload.params)})
    if (of->on())
      broken(device,
             "weights that lie elsewhere say too late which gradients are masked, and sparsity.match has "
             "some that are; nearest valid value: none, or sparsity.match: []",
             {"sparsity.match"});
  const std::string_view why = optimizer_of(r.optimizer.kind).moves_zeros(r.optimizer);
  if (r.optimizer.groups.empty() && !why.empty())
    broken("optimizer.kind",
           fmt::format("{}, and sparsity.match asks for zeros that stay; nearest valid value: adamw, or "
                       "sparsity.match: []",
                       why),
           {"sparsity.match"});
}

}  // namespace ltrain::recipe
