#include "runtime/plan/checkpoint_size.h"

#include "runtime/checkpoint/training_state.h"
#include "runtime/plan/meta_rank.h"

namespace ltrain {
namespace {

/// The same job without model parallelism, sharding and offload, on `data` ranks.
Recipe data_parallel_job(const Recipe& resolved, int64_t data) {
  Recipe job = resolved;
  const GradReduceDtype reduced = job.parallel.grad_reduce_dtype;
  job.parallel = {};
  job.parallel.data = data;
  job.parallel.grad_reduce_dtype = data > 1 ? reduced : GradReduceDtype::fp32;
  job.offload = {};
  return job;
}

}  // namespace

int64_t checkpoint_bytes(const Recipe& resolved, const MachineProfile& profile) {
  const auto rank_of = [&](const Recipe& job) {
    return std::make_unique<MetaRank>(job, profile, PipelineLayout{}, mesh_of(job, 0), 1);
  };
  int64_t bytes = 0;
  for (const StateSlice& s : state_slices(rank_of(data_parallel_job(resolved, 1))->program.parameters()))
    bytes += s.slice.elements() * dtype_size(s.dtype);
  if (const int64_t data = resolved.parallel.data; data > 1) {
    // Every rank of a compressed sum saves the errors of all that it sends. Errors of sums are saved once.
    const auto rank = rank_of(data_parallel_job(resolved, data));
    for (const RoundingError& e : rank->program.parameters().rounding_errors(false))
      if (e.sent) bytes += (data + 1) * e.tensor.bytes();
  }
  return bytes;
}

}  // namespace ltrain
