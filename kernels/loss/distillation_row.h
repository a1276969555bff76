// Statistics of all ranks for one row of distillation, for host and device.
#pragma once
#include <cmath>

#include "kernels/loss/distillation.h"

namespace ltrain {

/// Losses of a row, and the numbers from which its gradient follows: label * exp(s - student_top) + student *
/// exp((s - student_top) / T) - teacher * exp((t - teacher_top) / T), minus `target` at the target.
struct DistilledRow {
  double ce = 0, kl = 0;
  double student_top = 0, teacher_top = 0;
  double label = 0, student = 0, teacher = 0, target = 0;
};

template <class T>
LT_HD inline DistilledRow distilled_row(const T* stats, int ranks, int64_t rows, int64_t row,
                                        const DistillationLoss& loss, double scale) {
  const auto stat = [&](int r, int which) {
    return static_cast<double>(stats[(r * rows + row) * kDistillationStats + which]);
  };
  DistilledRow d;
  d.student_top = d.teacher_top = -INFINITY;
  for (int r = 0; r < ranks; ++r) {
    d.student_top = std::fmax(d.student_top, stat(r, kStudentTop));
    d.teacher_top = std::fmax(d.teacher_top, stat(r, kTeacherTop));
  }
  const double cool = 1 / loss.temperature;
  double sum = 0, soft = 0, taught = 0, cross = 0, at_target = 0;
  for (int r = 0; r < ranks; ++r) {
    // Differences of a rank's largest logits to those of the row.
    const double s = stat(r, kStudentTop) - d.student_top, t = stat(r, kTeacherTop) - d.teacher_top;
    const double by = std::exp(t * cool);
    sum += stat(r, kStudentSum) * std::exp(s);
    soft += stat(r, kStudentSoft) * std::exp(s * cool);
    taught += stat(r, kTeacherSoft) * by;
    cross += by * (stat(r, kCross) + stat(r, kTeacherSoft) * (t - s));
    at_target += stat(r, kAtTarget);
  }
  d.ce = std::log(sum) + d.student_top - at_target;
  d.kl = cross / taught * cool + std::log(soft) - std::log(taught);
  d.target = scale * (1 - loss.kd_ratio);
  d.label = d.target / sum;
  d.student = scale * loss.kd_ratio * loss.temperature / soft;
  d.teacher = scale * loss.kd_ratio * loss.temperature / taught;
  return d;
}

}  // namespace ltrain
