// Cross-entropy of one chunk of logits, with its gradient.
#pragma once
#include "kernels/tensor/host_device.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Factor of a gradient: a number, or a number in device memory that the kernel reads when it runs, as
/// captured work (Stream::capture) needs it. With `weights`, a row's factor is multiplied by the weight of
/// its text: weights[texts[row]].
struct GradientScale {
  double number = 1;
  const double* at = nullptr;
  const double* weights = nullptr;
  const int32_t* texts = nullptr;  ///< text of each row; negative: weight 1
  GradientScale(double n) : number(n) {}
  explicit GradientScale(const double* at) : at(at) {}
  LT_HD double get(int64_t row) const {
    const double scale = at ? *at : number;
    return weights && texts[row] >= 0 ? scale * weights[texts[row]] : scale;
  }
};

/// Z-loss on output logits (PaLM, arXiv:2204.02311): coeff * log(Z)^2 of each counted row, where Z is the sum
/// of exp(logits), after the soft-cap if there is one. `sum`: (1) f64, the z-loss is added to it. The
/// gradient is added to dlogits, with the same scale. coeff 0: no z-loss, and `sum` stays undefined.
struct OutputZLoss {
  double coeff = 0;
  Tensor sum;
};

/// fp32 logits of a row that a block of an H100 keeps in shared memory until their gradient is written.
constexpr int64_t kKeptLogits = 57344;

/// loss[0] += sum over rows with target >= 0 of (log sum exp(logits) - logits[target]). With dlogits:
/// dlogits[r, v] = scale * (softmax(logits[r])[v] - [v == target]), zero rows for target < 0. logits: (R, V)
/// f32 or f64; dlogits: (R, V), f32, f64 or bf16, may alias logits of the same dtype; loss: (1) f64, summed
/// over rows in order; targets: (R) i32, negative = not counted. Chunks of the batch add up in `loss`. With
/// soft_cap > 0 the loss is that of soft_cap * tanh(logits / soft_cap) (arXiv:2408.00118), and the gradient
/// is still with respect to the logits, here and below.
void cross_entropy(Stream& s, Tensor loss, Tensor dlogits, Tensor logits, Tensor targets, GradientScale scale,
                   double soft_cap = 0, const OutputZLoss& z_loss = {});
/// logits = soft_cap * tanh(logits / soft_cap), f32 or f64.
void soft_cap_logits(Stream& s, Tensor logits, double soft_cap);

/// A vocabulary sharded over tensor-parallel ranks: this rank's logits are those of tokens [first, first +
/// columns). Further columns are padding.
struct VocabColumns {
  int64_t first = 0, columns = 0;
};
/// stats[r] = {largest logit, sum of exp(logit - largest), logit of the target or 0 if another rank has it},
/// over this rank's columns. stats: (R, 3), dtype of the logits.
void cross_entropy_stats(Stream& s, Tensor stats, Tensor logits, Tensor targets, const VocabColumns& part,
                         double soft_cap = 0);
/// cross_entropy with the stats of all ranks: (ranks * R, 3). Padding columns get gradient zero.
void cross_entropy_sharded(Stream& s, Tensor loss, Tensor dlogits, Tensor logits, Tensor targets,
                           Tensor stats, const VocabColumns& part, GradientScale scale, double soft_cap = 0,
                           const OutputZLoss& z_loss = {});

LT_KERNEL(cross_entropy_stats, DType t, void* stats, const void* logits, const int32_t* targets, int64_t rows,
          int64_t vocab, VocabColumns part, double soft_cap)
LT_KERNEL(cross_entropy_sharded, DType logits_type, DType grad_type, double* loss, void* dlogits,
          const void* logits, const int32_t* targets, const void* stats, int ranks, int64_t rows,
          int64_t vocab, VocabColumns part, GradientScale scale, double soft_cap, double z_coeff,
          double* z_loss)

LT_KERNEL(cross_entropy, DType logits_type, DType grad_type, double* loss, void* dlogits, const void* logits,
          const int32_t* targets, int64_t rows, int64_t vocab, GradientScale scale, double soft_cap,
          double z_coeff, double* z_loss)

LT_KERNEL(soft_cap_logits, DType t, void* logits, int64_t n, double soft_cap)

}  // namespace ltrain
