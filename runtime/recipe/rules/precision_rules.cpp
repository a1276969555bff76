// Rules of precision and related settings.
#include <tuple>

#include "base/error.h"
#include "runtime/recipe/rules/rules_parts.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

void precision_rules(const Recipe& r, const BrokenRule& broken) {
  const LossScaleSettings& s = r.loss_scale.settings;
  if (s.minimum > s.initial)
    broken(
        "loss_scale.minimum",
        fmt::format("must be at most loss_scale.initial; nearest valid value: {}", write_number(s.initial)),
        {"loss_scale.initial"});
  const Parallel& p = r.parallel;
  if (p.grad_reduce_dtype == GradReduceDtype::fp32) return;
  if (r.precision == Precision::fp64)
    broken("parallel.grad_reduce_dtype", "precision: fp64 sums in fp64; nearest valid value: fp32",
           {"precision"});
  if (keeps_errors(p.grad_reduce_dtype)) {
    if (p.sharding().shards_gradients())
      broken(
          "parallel.grad_reduce_dtype",
          fmt::format("{} keeps an error of every gradient on every rank, and parallel.zero_stage: {} is "
                      "there to keep a piece of them; nearest valid value: bf16, or parallel.zero_stage: 1",
                      p.grad_reduce_dtype, p.zero_stage),
          {"parallel.zero_stage"});
    if (r.precision == Precision::fp16)
      broken("parallel.grad_reduce_dtype",
             fmt::format("{} keeps errors from step to step, and precision: fp16 changes what gradients are "
                         "multiplied by; nearest valid value: bf16, or precision: bf16",
                         p.grad_reduce_dtype),
             {"precision"});
  }
  // bf16 is allowed with two levels: gradients are rounded again on each
  if (p.grad_reduce_dtype == GradReduceDtype::bf16) return;
  for (const auto& [key, value, none] :
       {std::tuple{"parallel.shard_group", p.shard_group, "all"},
        std::tuple{"parallel.hierarchical_reduction", p.hierarchical_reduction, "none"}})
    if (value != kOneLevel)
      broken("parallel.grad_reduce_dtype",
             fmt::format("{} keeps errors of a sum on one level, and {} is {}; nearest valid value: bf16, or "
                         "{}: {}",
                         p.grad_reduce_dtype, key, level_text(value), key, none),
             {key});
}

}  // namespace ltrain::recipe
