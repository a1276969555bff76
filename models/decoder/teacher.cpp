#include "models/decoder/teacher.h"

#include "kernels/tensor/layer_prefix.h"
#include "models/layers/tensor_parallel.h"

namespace ltrain {

void FrozenTeacher::forward(const Step& student, const MicroBatch& mb) {
  LT_CHECK(!rows_.defined(), "expected a teacher to have one micro-batch at a time, got {}", 2);
  const Timed timed(*this, student.compute);
  const LayerPrefix named("teacher.");
  Step step = step_of(student);
  MicroBatch own = mb;
  own.distilled = {};
  // Sums, biases and choices of routers are the student's.
  own.experts = own.balance_sums = own.balance_table = own.router_bias = {};
  own.choices = {};
  own.by_token = {};
  rows_ = decoder().final_rows(step, own);
}

void FrozenTeacher::begin_logits(const Step& student) {
  const Timed timed(*this, student.compute);
  Step step = step_of(student);
  decoder().gather_head(step);
  whole_ = gather_rows(step, rows_, "gathered rows of the teacher");
}

void FrozenTeacher::logits(const Step& student, Tensor out, int64_t first_row) {
  const Timed timed(*this, student.compute);
  decoder().head().project(step_of(student), out, whole_.narrow(first_row, out.shape[0]));
}

void FrozenTeacher::end_logits(const Step& student) {
  Step step = step_of(student);
  release_whole(step, whole_, rows_);
  step.release(rows_);
  rows_ = whole_ = Tensor();
  decoder().release_head(step);
}

}  // namespace ltrain
