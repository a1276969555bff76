#include "kernels/loss/distillation.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

void check_logits(const Tensor& student, const Tensor& teacher, const Tensor& targets, const Tensor& stats,
                  const VocabColumns& part) {
  LT_CHECK(teacher.shape == student.shape && teacher.dtype == student.dtype && stats.dtype == student.dtype &&
               targets.elements() == student.rows() && part.columns <= student.cols(),
           "distillation: expected logits of both models {} {}, statistics of that type, {} targets and at "
           "most {} columns, got a teacher's {} {}, statistics {}, {} targets and {} columns",
           to_string(student.shape), dtype_name(student.dtype), student.rows(), student.cols(),
           to_string(teacher.shape), dtype_name(teacher.dtype), dtype_name(stats.dtype), targets.elements(),
           part.columns);
}

}  // namespace

void distillation_stats(Stream& s, Tensor stats, Tensor student, Tensor teacher, Tensor targets,
                        const VocabColumns& part, double temperature, double soft_cap) {
  check_logits(student, teacher, targets, stats, part);
  LT_CHECK(stats.elements() == kDistillationStats * student.rows() && temperature > 0,
           "distillation statistics: expected ({}, {}) and a temperature above 0, got {} and {}",
           student.rows(), int{kDistillationStats}, to_string(stats.shape), temperature);
  if (s.meta()) {
    s.meta()->add(s, op_cost("distillation_stats", OpClass::cross_entropy, 12.0 * student.elements(), {stats},
                             {student, teacher}));
    place(s, "distillation_stats", Rule::elementwise, {stats}, {student, teacher, targets});
    place_row_statistics(s, stats);
    return;
  }
  LT_LAUNCH(s, distillation_stats, student.dtype, stats.data, student.data, teacher.data,
            targets.ptr<int32_t>(), student.rows(), student.cols(), part, temperature, soft_cap);
}

void distillation(Stream& s, Tensor ce, Tensor kl, Tensor dstudent, Tensor student, Tensor teacher,
                  Tensor targets, Tensor stats, const VocabColumns& part, const DistillationLoss& loss,
                  GradientScale scale, double soft_cap) {
  check_logits(student, teacher, targets, stats, part);
  const int64_t rows = student.rows(), numbers = kDistillationStats * rows;
  LT_CHECK(
      stats.elements() % numbers == 0 && dstudent.shape == student.shape && ce.elements() == 1 &&
          ce.dtype == DType::f64 && kl.elements() == 1 && kl.dtype == DType::f64,
      "distillation: expected statistics (ranks * {}, {}), a gradient {} and two sums of one f64, got {}, "
      "{}, and sums of {} and {}",
      rows, int{kDistillationStats}, to_string(student.shape), to_string(stats.shape),
      to_string(dstudent.shape), ce.elements(), kl.elements());
  if (s.meta()) {
    // The losses follow from the statistics; the gradient reads the logits once more.
    s.meta()->add(s, op_cost("distillation", OpClass::cross_entropy, 10.0 * student.elements(), {dstudent},
                             {student, teacher, stats}));
    for (const Tensor& sum : {ce, kl})
      place(s, "distillation", Rule::sum_rows, {sum}, {stats, targets}, /*accumulate=*/true);
    place(s, "distillation", Rule::elementwise, {dstudent}, {student, teacher, targets, stats});
    return;
  }
  LT_LAUNCH(s, distillation, student.dtype, dstudent.dtype, ce.ptr<double>(), kl.ptr<double>(), dstudent.data,
            student.data, teacher.data, targets.ptr<int32_t>(), stats.data,
            static_cast<int>(stats.elements() / numbers), rows, student.cols(), part, loss, scale, soft_cap);
}

}  // namespace ltrain
