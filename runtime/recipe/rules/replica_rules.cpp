// Rules of replicas: what has a state that replicas do not share.
#include "runtime/recipe/nearest_value.h"
#include "runtime/recipe/rules/rules.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {
namespace {

const std::string kCount = "replicas.count";

}  // namespace

void replica_rules(const Recipe& r, const BrokenRule& broken) {
  if (!r.replicas.on()) return;
  if (r.replicas.min > r.replicas.count)
    broken("replicas.min",
           fmt::format("must be at most {} = {}; nearest valid value: {}", kCount, r.replicas.count,
                       r.replicas.count),
           {kCount});
  const double hang = r.launch.distributed_timeout_minutes * 60;
  if (r.replicas.timeout_seconds >= hang)
    broken(
        "replicas.timeout_seconds",
        fmt::format("must be below launch.distributed_timeout_minutes, {:g} s, after which a rank that waits "
                    "for another replica counts as hanging; nearest valid value: {:g}",
                    hang, hang / 2),
        {"launch.distributed_timeout_minutes"});
  const auto refuse = [&](const char* key, bool on, const char* why, const char* valid) {
    if (on) broken(key, fmt::format("{}; nearest valid value: {}, or {}: 0", why, valid, kCount), {kCount});
  };
  refuse("diloco.sites", r.diloco.on(), "has sites that do not sum gradients in every step", "0");
  refuse("precision", computes_in(r, Precision::fp16), "has a loss scale, which a replica that joins lacks",
         "bf16");
  refuse("precision", computes_in(r, Precision::fp8),
         "has largest magnitudes of the past, which a replica that joins lacks", "bf16");
  refuse("train.skip_grad_norm", r.train.skip_grad_norm > 0,
         "counts skipped updates, which a replica that joins lacks", "0");
  refuse("model.moe.balance.kind", r.model.moe.balance == BalanceLoss::global,
         "counts choices of a step's earlier micro-batches, which replicas do not share", "switch");
  refuse("sparsity.match", r.sparsity.on(), "has masks, which a replica that joins lacks", "[]");
  refuse("parallel.grad_reduce_dtype", keeps_errors(r.parallel.grad_reduce_dtype),
         "has rounding errors of ranks, which a replica that joins lacks", "bf16");
  refuse("offload.optimizer.device", r.offload.optimizer.on(), "moves states out, which replicas copy",
         "none");
  refuse("offload.params.device", r.offload.params.on(), "moves weights out, which replicas copy", "none");
  refuse("task", trains_preferences(r.task), "counts pairs of all ranks in a step", "pretrain");
  refuse("data.shuffle_window", r.data.shuffle_window > 0,
         "waits for token files, which replicas would do apart", "0");
  one_kind_of_step_rule(r, broken, kCount, "");
  const int64_t micros =
      r.train.global_batch_size /
      std::max<int64_t>(1, r.train.micro_batch_size * std::max<int64_t>(1, r.parallel.data));
  if (r.parallel.data > 0 && r.replicas.count > micros)
    broken(kCount,
           fmt::format("must be at most the {} micro-batches of a step (train.global_batch_size over "
                       "train.micro_batch_size and parallel.data){}",
                       micros, nearest(r.replicas.count, 1, micros, [](int64_t) { return true; })),
           {"train.global_batch_size", "train.micro_batch_size", "parallel.data"});
}

}  // namespace ltrain::recipe
