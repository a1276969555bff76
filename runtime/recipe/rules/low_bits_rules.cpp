// Rules of optimizers that use their own gradients: gradients of one rank (1-bit Adam and LAMB), at moved
// weights, or for sampled labels (Sophia).
#include <algorithm>

#include "base/error.h"
#include "parallel/optim/optimizer.h"
#include "runtime/recipe/rules/rules_parts.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

void onebit_rules(const Recipe& r, const BrokenRule& broken) {
  const OptimizerKeys& o = r.optimizer;
  const std::string kind = "optimizer.kind";
  for (const ParameterGroup& g : o.groups)
    if (g.kind && (is_onebit(*g.kind) || is_onebit(o.kind)))
      return broken("optimizer.groups",
                    fmt::format("kind: {} beside optimizer.kind: {}: a 1-bit optimizer is for all "
                                "parameters, whose gradients stay with their ranks; remove the group's kind",
                                update_rule_name(*g.kind), update_rule_name(o.kind)),
                    {kind});
  if (!is_onebit(o.kind)) return;
  const Parallel& p = r.parallel;
  const std::string_view name = update_rule_name(o.kind);
  const std::string plain = o.kind == UpdateRule::onebit_adam ? "adamw" : "lamb";
  if (p.sharding().shards_optimizer())
    broken(kind,
           fmt::format("{} adds a rank's own gradient to all of the first moment, and parallel.zero_stage: "
                       "{} leaves a rank a piece of it; nearest valid value: {}, or parallel.zero_stage: 0",
                       name, p.zero_stage, plain),
           {"parallel.zero_stage"});
  if (p.hierarchical_reduction != kOneLevel)
    broken(kind,
           fmt::format("{} averages on one level, and parallel.hierarchical_reduction is {}; nearest valid "
                       "value: {}, or parallel.hierarchical_reduction: none",
                       name, level_text(p.hierarchical_reduction), plain),
           {"parallel.hierarchical_reduction"});
  if (keeps_errors(p.grad_reduce_dtype))
    broken(kind,
           fmt::format("{} has errors of its own bits, and parallel.grad_reduce_dtype: {} others; nearest "
                       "valid value: {}, or parallel.grad_reduce_dtype: fp32",
                       name, p.grad_reduce_dtype, plain),
           {"parallel.grad_reduce_dtype"});
  if (o.freeze_step >= r.train.train_steps)
    broken(
        "optimizer.freeze_step",
        fmt::format(
            "a run of train.train_steps = {} is all warm-up; nearest valid value: {}, or optimizer.kind: {}",
            r.train.train_steps, std::max<int64_t>(1, r.train.train_steps - 1), plain),
        {"train.train_steps"});
  const LambLimits& l = o.lamb_limits;
  if (l.min_coeff > l.max_coeff)
    broken("optimizer.min_coeff",
           fmt::format("must be at most optimizer.max_coeff; nearest valid value: {}",
                       write_number(l.max_coeff)),
           {"optimizer.max_coeff"});
  if (l.factor_min > l.factor_max)
    broken("optimizer.factor_min",
           fmt::format("must be at most optimizer.factor_max; nearest valid value: {}",
                       write_number(l.factor_max)),
           {"optimizer.factor_max"});
}

void sophia_rules(const Recipe& r, const BrokenRule& broken) {
  if (!r.optimizer.uses(UpdateRule::sophia)) return;
  const std::string where = r.optimizer.kind == UpdateRule::sophia ? "optimizer.kind" : "optimizer.groups";
  const std::string estimator = "optimizer.hessian_estimator", dtype = "parallel.grad_reduce_dtype";
  if (r.optimizer.hessian_estimator == HessianEstimator::gauss_newton) {
    if (keeps_errors(r.parallel.grad_reduce_dtype))
      broken(
          where,
          fmt::format("sophia sums gradients of drawn labels too, and parallel.grad_reduce_dtype: {} would "
                      "add what rounding leaves of those to the step's own; nearest valid value: lion, or "
                      "parallel.grad_reduce_dtype: bf16",
                      r.parallel.grad_reduce_dtype),
          {dtype});
    return;
  }
  const std::string difference = "hutchinson takes the difference of two gradients";
  if (r.precision != Precision::fp32 && r.precision != Precision::fp64)
    broken(estimator,
           fmt::format("{} whose weights differ by a hundredth of themselves or less, and precision: {} has "
                       "no digits for it; nearest valid value: gauss_newton, or precision: fp32",
                       difference, to_string(r.precision)),
           {"precision"});
  if (r.parallel.grad_reduce_dtype != GradReduceDtype::fp32)
    broken(estimator,
           fmt::format("{}, and parallel.grad_reduce_dtype: {} rounds both; nearest valid value: "
                       "gauss_newton, or parallel.grad_reduce_dtype: fp32",
                       difference, r.parallel.grad_reduce_dtype),
           {dtype});
}

}  // namespace ltrain::recipe
