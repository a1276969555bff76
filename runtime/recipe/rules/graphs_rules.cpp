// Rules of CUDA graph capture.
#include "base/error.h"
#include "parallel/optim/optimizer.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

namespace {

/// Calls refuse(why, key) for each setting that prevents capture.
template <class F>
void each_graph_hindrance(const Recipe& r, F&& refuse) {
  if (r.device == DeviceChoice::cpu) refuse("device: cpu has no graphs", "device");
  if (r.debug.shared_gpu)
    refuse("ranks that share a GPU (debug.shared_gpu) wait for each other", "debug.shared_gpu");
  if (r.model.moe.num_experts > 0)
    refuse("how many rows each expert gets is read by the host in every step", "model.moe.num_experts");
  if (r.train.batch_ramp.start > 0)
    refuse("train.batch_ramp changes the micro-batches of a step", "train.batch_ramp.start");
  if (r.offload.optimizer.on())
    refuse("offload.optimizer moves states beside the step", "offload.optimizer.device");
  if (r.offload.activations.on())
    refuse("offload.activations moves them beside the step", "offload.activations.device");
  if (r.parallel.sharding().shards_gradients())
    refuse(
        fmt::format("parallel.zero_stage: {} takes memory for gradients as they come", r.parallel.zero_stage),
        "parallel.zero_stage");
}

}  // namespace

void graph_rules(const Recipe& r, const BrokenRule& broken) {
  if (r.cuda_graphs != OverlapChoice::on) return;
  each_graph_hindrance(r, [&](const std::string& why, const std::string& key) {
    broken("cuda_graphs", why + "; nearest valid value: off", {key});
  });
}

bool captures_steps(const Recipe& r) {
  if (r.cuda_graphs != OverlapChoice::automatic) return r.cuda_graphs == OverlapChoice::on;
  // Captured collectives have not run on several GPUs yet, so they need an explicit `on`.
  bool possible =
      device_of(r) == DeviceKind::cuda && ranks(r) == 1 && r.phases.empty() && !overlaps_micro_batches(r);
  each_graph_hindrance(r, [&](const std::string&, const std::string&) { possible = false; });
  return possible;
}

void graph_layout_rules(const Recipe& r, int64_t world_size, const BrokenRule& broken) {
  if (r.cuda_graphs != OverlapChoice::on || world_size == 1) return;
  if (is_onebit(r.optimizer.kind))
    broken("cuda_graphs",
           fmt::format("optimizer.kind: {} sums gradients until its warm-up ends, and none after it, and "
                       "captured work stays as it is; nearest valid value: off",
                       update_rule_name(r.optimizer.kind)),
           {"optimizer.kind"});
}

}  // namespace ltrain::recipe
