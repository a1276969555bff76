#include "models/decoder/frozen_model.h"

#include "kernels/meta/meta.h"

namespace ltrain {

FrozenModel::Timed::Timed(FrozenModel& model, Stream& compute)
    : model_(model), compute_(compute), begin_(compute.clock) {
  if (compute.meta()) compute.meta()->set_model_work(false);
}

FrozenModel::Timed::~Timed() {
  if (!compute_.meta()) return;
  compute_.meta()->set_model_work(true);
  model_.seconds_ += compute_.clock - begin_;
}

void FrozenModel::allocate(Stream& compute, Memory& memory, const Groups& groups,
                           const PrecisionPolicy& precision, const ShardingPolicy& sharding,
                           int64_t bucket_elements, int64_t seq) {
  ParameterStore::Layout layout{.precision = precision, .sharding = {}, .bucket_elements = bucket_elements};
  layout.precision.master = precision.compute;
  if (sharding.shards_weights()) layout.sharding = ShardingPolicy::zero(3);
  layout.optimizer.frozen = {"*"};
  store_.allocate(compute, memory, groups, layout);
  decoder_.allocate(compute, memory, seq, false);
}

int64_t FrozenModel::weight_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& held : store_.held_values()) bytes += held.bytes();
  return bytes;
}

Step FrozenModel::step_of(const Step& trained) {
  Step step{trained.compute,           trained.memory, store_, trained.groups, trained.dtype, trained.seed,
            trained.sequence_parallel,
            /*training=*/false};
  step.staging = trained.staging;
  step.logits_chunk = trained.logits_chunk;
  return step;
}

}  // namespace ltrain
