#include "models/decoder/teacher.h"

#include "kernels/meta/meta.h"
#include "kernels/tensor/layer_prefix.h"
#include "models/layers/tensor_parallel.h"

namespace ltrain {

/// On meta: counts the time of a call, whose work is not the student's.
class FrozenTeacher::Timed {
 public:
  Timed(FrozenTeacher& teacher, Stream& compute)
      : teacher_(teacher), compute_(compute), begin_(compute.clock) {
    if (compute.meta()) compute.meta()->set_model_work(false);
  }
  ~Timed() {
    if (!compute_.meta()) return;
    compute_.meta()->set_model_work(true);
    teacher_.seconds_ += compute_.clock - begin_;
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  FrozenTeacher& teacher_;
  Stream& compute_;
  double begin_;
};

static DecoderOptions decoder_options(bool sequence_parallel) {
  DecoderOptions o;
  o.sequence_parallel = sequence_parallel;
  return o;
}

FrozenTeacher::FrozenTeacher(const ModelConfig& config, const Groups& groups, bool sequence_parallel)
    : decoder_(config, store_, groups, decoder_options(sequence_parallel)) {}

void FrozenTeacher::allocate(Stream& compute, Memory& memory, const Groups& groups,
                             const PrecisionPolicy& precision, const ShardingPolicy& sharding,
                             int64_t bucket_elements, int64_t seq) {
  ParameterStore::Layout layout{.precision = precision, .sharding = {}, .bucket_elements = bucket_elements};
  layout.precision.master = precision.compute;
  if (sharding.shards_weights()) layout.sharding = ShardingPolicy::zero(3);
  layout.optimizer.frozen = {"*"};
  store_.allocate(compute, memory, groups, layout);
  decoder_.allocate(compute, memory, seq, false);
}

int64_t FrozenTeacher::weight_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& held : store_.held_values()) bytes += held.bytes();
  return bytes;
}

Step FrozenTeacher::step_of(const Step& student) {
  Step step{student.compute,           student.memory, store_, student.groups, student.dtype, student.seed,
            student.sequence_parallel,
            /*training=*/false};
  step.staging = student.staging;
  return step;
}

void FrozenTeacher::forward(const Step& student, const MicroBatch& mb) {
  LT_CHECK(!rows_.defined(), "expected a teacher to have one micro-batch at a time, got {}", 2);
  const Timed timed(*this, student.compute);
  const LayerPrefix named("teacher.");
  Step step = step_of(student);
  MicroBatch own = mb;
  own.distilled = {};
  // Sums and biases of routers are the student's.
  own.experts = own.balance_sums = own.balance_table = own.router_bias = {};
  rows_ = decoder_.final_rows(step, own);
}

void FrozenTeacher::begin_logits(const Step& student) {
  const Timed timed(*this, student.compute);
  Step step = step_of(student);
  decoder_.gather_head(step);
  whole_ = gather_rows(step, rows_, "gathered rows of the teacher");
}

void FrozenTeacher::logits(const Step& student, Tensor out, int64_t first_row) {
  const Timed timed(*this, student.compute);
  decoder_.head().project(step_of(student), out, whole_.narrow(first_row, out.shape[0]));
}

void FrozenTeacher::end_logits(const Step& student) {
  Step step = step_of(student);
  release_whole(step, whole_, rows_);
  step.release(rows_);
  rows_ = whole_ = Tensor();
  decoder_.release_head(step);
}

}  // namespace ltrain
