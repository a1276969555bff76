#include "runtime/recipe/derived.h"

#include <fmt/format.h>

#include <utility>

#include "parallel/pipeline/schedule.h"

namespace ltrain::recipe {

std::vector<Hindrance> overlap_hindrances(const Recipe& r) {
  std::vector<Hindrance> out;
  const auto add = [&](std::string why, const char* key) { out.push_back({std::move(why), key}); };
  const Parallel& p = r.parallel;
  const pipeline::ScheduleInfo* schedule = pipeline::find_schedule(p.schedule);
  if (p.pipeline > 1 && !p.schedule_file && schedule && schedule->pairs == pipeline::Pairs::none)
    add(fmt::format("parallel.schedule: {} has no forward and backward that can run beside each other; "
                    "interleaved and dualpipev have",
                    p.schedule),
        "parallel.schedule");
  if (r.cuda_graphs == OverlapChoice::on) add("cuda_graphs records a micro-batch at a time", "cuda_graphs");
  if (r.distillation.teacher)
    add("distillation.teacher runs one micro-batch at a time", "distillation.teacher");
  if (r.distillation.logits)
    add("distillation.logits are read for one micro-batch at a time", "distillation.logits");
  if (r.offload.params.on())
    add("offload.params brings weights for one pass at a time", "offload.params.device");
  if (r.offload.activations.on())
    add("offload.activations moves those of one micro-batch at a time", "offload.activations.device");
  if (r.model.moe.num_experts > 0 && r.model.moe.balance == BalanceLoss::hf)
    add("model.moe.balance.kind: hf sums over the layers of one micro-batch at a time",
        "model.moe.balance.kind");
  if (p.replicated_experts > 0)
    add("parallel.shadow_experts copies the experts of one micro-batch at a time", "parallel.shadow_experts");
  if (p.async_tensor_parallel == OverlapChoice::on)
    add("parallel.async_tensor_parallel: on hides collectives inside a micro-batch",
        "parallel.async_tensor_parallel");
  return out;
}

std::vector<Hindrance> chunk_hindrances(const Recipe& r) {
  std::vector<Hindrance> out;
  const auto add = [&](std::string why, const char* key) { out.push_back({std::move(why), key}); };
  if (r.parallel.tensor_mode != TensorModeChoice::one_d)
    add(fmt::format("parallel.tensor_mode: {} hides its blocks by itself", r.parallel.tensor_mode),
        "parallel.tensor_mode");
  if (computes_in(r, Precision::fp8)) add("precision: fp8 rounds operands as a whole", "precision");
  return out;
}

std::vector<Hindrance> graph_hindrances(const Recipe& r) {
  std::vector<Hindrance> out;
  const auto add = [&](std::string why, const char* key) { out.push_back({std::move(why), key}); };
  if (r.device == DeviceChoice::cpu) add("device: cpu has no graphs", "device");
  if (r.debug.shared_gpu)
    add("ranks that share a GPU (debug.shared_gpu) wait for each other", "debug.shared_gpu");
  if (r.distillation.teacher) add("forward passes of a teacher are not recorded", "distillation.teacher");
  if (r.distillation.logits)
    add("logits of a teacher are copied in beside a micro-batch", "distillation.logits");
  if (r.model.moe.num_experts > 0)
    add("how many rows each expert gets is read by the host in every step", "model.moe.num_experts");
  if (r.replicas.on()) add("replicas change the micro-batches of a step", "replicas.count");
  if (r.train.batch_ramp.start > 0)
    add("train.batch_ramp changes the micro-batches of a step", "train.batch_ramp.start");
  if (r.sparsity.on() && r.sparsity.gradient_estimator != GradientEstimator::none)
    add("sparsity.gradient_estimator prunes in some updates and not in others",
        "sparsity.gradient_estimator");
  if (r.offload.optimizer.on())
    add("offload.optimizer moves states beside the step", "offload.optimizer.device");
  if (r.offload.activations.on())
    add("offload.activations moves them beside the step", "offload.activations.device");
  if (r.parallel.sharding().shards_gradients())
    add(fmt::format("parallel.zero_stage: {} takes memory for gradients as they come", r.parallel.zero_stage),
        "parallel.zero_stage");
  return out;
}

bool captures_steps(const Recipe& r) {
  if (r.cuda_graphs != OverlapChoice::automatic) return r.cuda_graphs == OverlapChoice::on;
  // Captured collectives have not run on several GPUs yet, so they need an explicit `on`.
  const bool possible =
      device_of(r) == DeviceKind::cuda && ranks(r) == 1 && r.phases.empty() && !overlaps_micro_batches(r);
  return possible && graph_hindrances(r).empty();
}

bool overlaps_micro_batches(const Recipe& r) {
  const Parallel& p = r.parallel;
  if (p.overlap_micro_batches != OverlapChoice::automatic)
    return p.overlap_micro_batches == OverlapChoice::on;
  // Ring attention hides its own communication, so p2p context ranks are not a reason to overlap.
  const pipeline::ScheduleInfo* schedule = pipeline::find_schedule(p.schedule);
  if (p.pipeline > 1 && !p.schedule_file && schedule && schedule->pairs != pipeline::Pairs::intended)
    return false;
  const bool possible = p.tensor > 1 || p.expert > 1 || (p.context > 1 && p.context_comm != ContextComm::p2p);
  return possible && overlap_hindrances(r).empty();
}

bool async_tensor_parallel(const Recipe& r) {
  const Parallel& p = r.parallel;
  if (p.tensor == 1 || p.async_tensor_parallel == OverlapChoice::off) return false;
  if (p.async_tensor_parallel == OverlapChoice::on) return true;
  const bool turns = overlaps_micro_batches(r) && micro_batches_per_step(r) > 1;
  // Without sequence parallelism, chunked all-reduces hide little: planned steps are between 1 % faster and 1
  // % slower.
  const bool possible = device_of(r) == DeviceKind::cuda && p.sequence_parallel && !turns;
  return possible && chunk_hindrances(r).empty();
}

std::string overlap_text(const Recipe& r, bool beside) {
  if (async_tensor_parallel(r))
    return "tensor-parallel products in parts, each beside the collective of another "
           "(parallel.async_tensor_parallel)";
  if (beside && overlaps_micro_batches(r))
    return "the backward of a micro-batch and the forward of another by turns "
           "(parallel.overlap_micro_batches)";
  return "";
}

Recipe micro_batches_apart(Recipe r) {
  r.parallel.async_tensor_parallel = async_tensor_parallel(r) ? OverlapChoice::on : OverlapChoice::off;
  r.parallel.overlap_micro_batches = OverlapChoice::off;
  return r;
}

}  // namespace ltrain::recipe
