#include "runtime/plan/checkpoint_size.h"

#include "runtime/checkpoint/training_state.h"
#include "runtime/plan/meta_rank.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {
namespace {

/// The same job without sharding of dense layers and optimizer states, and without offload.
Recipe unsharded(const Recipe& resolved) {
  Recipe job = resolved;
  job.parallel = {};
  job.parallel.data = 1;
  job.offload = {};
  return job;
}

/// Bytes of rounding errors of compressed sums on all ranks.
int64_t rounding_error_bytes(const Recipe& resolved, const MachineProfile& profile) {
  // Only the axes whose ranks sum gradients matter. Tensor and pipeline ranks divide the same elements.
  const Parallel& given = resolved.parallel;
  Recipe job = unsharded(resolved);
  job.parallel.data = given.data;
  job.parallel.context = given.context;
  job.parallel.context_comm = given.context_comm;
  job.parallel.context_inner = given.context_inner;
  job.parallel.expert = given.expert;
  job.parallel.grad_reduce_dtype = given.grad_reduce_dtype;
  MetaRank rank(job, profile, PipelineLayout{}, mesh_of(job, 0), 1);
  int64_t bytes = 0;
  for (const RoundingError& e : rank.program.parameters().rounding_errors(false)) {
    if (!e.sent) continue;
    // Each rank of a sum saves errors of all that it sends. Errors of the sum itself are saved once.
    const int64_t parts = e.slice.global.elements() / e.slice.elements();  // expert ranks have other parts
    bytes += (e.ranks + 1) * parts * e.tensor.bytes();
  }
  return bytes;
}

}  // namespace

int64_t checkpoint_bytes(const Recipe& resolved, const MachineProfile& profile) {
  const Recipe job = unsharded(resolved);
  MetaRank rank(job, profile, PipelineLayout{}, mesh_of(job, 0), 1);
  int64_t bytes = rounding_error_bytes(resolved, profile);
  for (const StateSlice& s : state_slices(rank.program.parameters()))
    bytes += s.slice.elements() * dtype_size(s.dtype);
  return bytes;
}

}  // namespace ltrain
