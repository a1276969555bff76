// Distillation loss of one chunk of logits from a teacher's logits, with its gradient. The vocabulary may be
// sharded over tensor-parallel ranks, which exchange a few statistics for each row.
#pragma once
#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/distillation_loss.h"

namespace ltrain {

/// Statistics of a row over a rank's columns; s: student's logits, after the soft-cap if there is one, t:
/// teacher's logits, T: temperature.
enum DistillationStat : int {
  kStudentTop,   ///< largest s
  kStudentSum,   ///< sum of exp(s - largest s)
  kStudentSoft,  ///< sum of exp((s - largest s) / T)
  kAtTarget,     ///< s of the target, 0 if another rank has it
  kTeacherTop,   ///< largest t
  kTeacherSoft,  ///< sum of exp((t - largest t) / T)
  kCross,        ///< sum of exp((t - largest t) / T) * ((t - largest t) - (s - largest s))
  kDistillationStats
};

/// stats: (R, kDistillationStats), dtype of the logits; zero for targets < 0. student, teacher: (R, V) f32 or
/// f64; targets: (R) i32, negative = not counted.
void distillation_stats(Stream& s, Tensor stats, Tensor student, Tensor teacher, Tensor targets,
                        const VocabColumns& part, double temperature, double soft_cap = 0);

/// With the stats of all ranks, (ranks * R, kDistillationStats): ce[0] += sum over rows with target >= 0 of
/// the cross-entropy, kl[0] += sum of KL(teacher || student) at the temperature, without its square. ce, kl:
/// (1) f64, summed over rows in order. dstudent[r, v] = scale * gradient of the row's loss: (1 - kd_ratio) *
/// (softmax(s) - [v == target]) + kd_ratio * T * (softmax(s / T) - softmax(t / T)), zero for target < 0 and
/// in padding columns; f32, f64 or 16 bits, may alias `student` of the same dtype.
void distillation(Stream& s, Tensor ce, Tensor kl, Tensor dstudent, Tensor student, Tensor teacher,
                  Tensor targets, Tensor stats, const VocabColumns& part, const DistillationLoss& loss,
                  GradientScale scale, double soft_cap = 0);

LT_KERNEL(distillation_stats, DType t, void* stats, const void* student, const void* teacher,
          const int32_t* targets, int64_t rows, int64_t vocab, VocabColumns part, double temperature,
          double soft_cap)
LT_KERNEL(distillation, DType logits_type, DType grad_type, double* ce, double* kl, void* dstudent,
          const void* student, const void* teacher, const int32_t* targets, const void* stats, int ranks,
          int64_t rows, int64_t vocab, VocabColumns part, DistillationLoss loss, GradientScale scale,
          double soft_cap)

}  // namespace ltrain
