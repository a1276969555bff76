// Rules of overlapped micro-batches and of chunked tensor-parallel matmuls.
#include "base/error.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {
namespace {

/// Calls refuse(why, key) for each setting that prevents overlapped micro-batches.
template <class F>
void each_hindrance(const Recipe& r, F&& refuse) {
  const Parallel& p = r.parallel;
  const pipeline::ScheduleInfo* schedule = pipeline::find_schedule(p.schedule);
  if (p.pipeline > 1 && !p.schedule_file && schedule && schedule->pairs == pipeline::Pairs::none)
    refuse(fmt::format("parallel.schedule: {} has no forward and backward that can run beside each other; "
                       "interleaved and dualpipev have",
                       p.schedule),
           "parallel.schedule");
  if (r.cuda_graphs == OverlapChoice::on)
    refuse("cuda_graphs records a micro-batch at a time", "cuda_graphs");
  if (r.offload.params.on())
    refuse("offload.params brings weights for one pass at a time", "offload.params.device");
  if (r.offload.activations.on())
    refuse("offload.activations moves those of one micro-batch at a time", "offload.activations.device");
  if (r.model.moe.num_experts > 0 && r.model.moe.balance == BalanceLoss::hf)
    refuse("model.moe.balance.kind: hf sums over the layers of one micro-batch at a time",
           "model.moe.balance.kind");
  if (p.replicated_experts > 0)
    refuse("parallel.shadow_experts copies the experts of one micro-batch at a time",
           "parallel.shadow_experts");
  if (p.async_tensor_parallel == OverlapChoice::on)
    refuse("parallel.async_tensor_parallel: on hides collectives inside a micro-batch",
           "parallel.async_tensor_parallel");
}

/// Calls refuse(why, key) for each setting that prevents chunked tensor-parallel matmuls.
template <class F>
void each_async_hindrance(const Recipe& r, F&& refuse) {
  if (r.parallel.tensor_mode != TensorModeChoice::one_d)
    refuse(fmt::format("parallel.tensor_mode: {} hides its blocks by itself", r.parallel.tensor_mode),
           "parallel.tensor_mode");
  if (computes_in(r, Precision::fp8)) refuse("precision: fp8 rounds operands as a whole", "precision");
}

}  // namespace

void overlap_rules(const Recipe& r, const BrokenRule& broken) {
  if (r.parallel.async_tensor_parallel == OverlapChoice::on)
    each_async_hindrance(r, [&](const std::string& why, const std::string& key) {
      broken("parallel.async_tensor_parallel", why + "; nearest valid value: auto", {key});
    });
  if (r.parallel.overlap_micro_batches != OverlapChoice::on) return;
  if (r.parallel.pipeline > 1 && r.parallel.chooses_schedule() && !r.parallel.schedule_file)
    broken("parallel.overlap_micro_batches",
           "parallel.schedule: auto may choose one without a forward and backward beside each other; nearest "
           "valid value: auto",
           {"parallel.schedule"});
  each_hindrance(r, [&](const std::string& why, const std::string& key) {
    broken("parallel.overlap_micro_batches", why + "; nearest valid value: auto", {key});
  });
}

bool overlaps_micro_batches(const Recipe& r) {
  const Parallel& p = r.parallel;
  if (p.overlap_micro_batches != OverlapChoice::automatic)
    return p.overlap_micro_batches == OverlapChoice::on;
  // Ring attention hides its own communication, so p2p context ranks are not a reason to overlap.
  const pipeline::ScheduleInfo* schedule = pipeline::find_schedule(p.schedule);
  if (p.pipeline > 1 && !p.schedule_file && schedule && schedule->pairs != pipeline::Pairs::intended)
    return false;
  bool possible = p.tensor > 1 || p.expert > 1 || (p.context > 1 && p.context_comm != ContextComm::p2p);
  each_hindrance(r, [&](const std::string&, const std::string&) { possible = false; });
  return possible;
}

bool async_tensor_parallel(const Recipe& r) {
  const Parallel& p = r.parallel;
  if (p.tensor == 1 || p.async_tensor_parallel == OverlapChoice::off) return false;
  if (p.async_tensor_parallel == OverlapChoice::on) return true;
  const bool turns = overlaps_micro_batches(r) && micro_batches_per_step(r) > 1;
  // Without sequence parallelism, chunked all-reduces hide little: planned steps are between 1 % faster and 1
  // % slower.
  bool possible = device_of(r) == DeviceKind::cuda && p.sequence_parallel && !turns;
  each_async_hindrance(r, [&](const std::string&, const std::string&) { possible = false; });
  return possible;
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
