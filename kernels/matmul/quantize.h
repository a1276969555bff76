// Quantization of matrices to FP8, with a step (kernels/tensor/fp8.h) for the tensor or for each block.
#pragma once
#include "kernels/tensor/fp8.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Elements along the contraction that share a step, and rows of a block of weights (arXiv:2412.19437,
/// 3.3.2).
inline constexpr int64_t kFp8Block = 128;

/// amax[0] = max(amax[0], largest |x|); NaN counts as larger than all. amax: (1) f32. The bits do not depend
/// on the order.
void max_abs(Stream& s, Tensor amax, Tensor x);

/// codes = x / step, rounded to an FP8 dtype. codes: (rows, cols), or (cols, rows) with `turn`; x: (rows,
/// cols), any floating dtype, converted through f32; step: (1) f32, a power of two. With `amax` also computes
/// max_abs. No aliases.
void quantize(Stream& s, Tensor codes, Tensor x, bool turn, Tensor step, Tensor amax = {});

/// Codes of x (rows, cols) and of its transpose with one read of x: the same bits as quantize without and
/// with `turn`. `amax` as in quantize. No aliases.
void quantize_both(Stream& s, Tensor codes, Tensor transposed, Tensor x, Tensor step, Tensor amax = {});

/// Quantized output of an op: the same codes that quantize would make of its result, and `amax`.
struct RoundedOutput {
  Tensor codes;  ///< shape of the result; e4m3, of a gradient any FP8 dtype
  Tensor step;
  Tensor amax = {};        ///< optional
  Tensor transposed = {};  ///< codes of the transpose, for ops that say so; on meta placed as the result is
};
/// Placement on meta: checks that ranks agree on the step, and derives the placements of `amax` and
/// `transposed`. The codes already have the placement of the result.
void place_rounded(Stream& s, const char* op, const RoundedOutput& out);
void check_rounded(const RoundedOutput& out, const Shape& shape);

/// transposed (cols, rows) = transpose of codes (rows, cols), for any one-byte dtype. No aliases.
void turn_codes(Stream& s, Tensor transposed, Tensor codes);

/// quantize with steps that it computes. codes: (r, c), one step for each block of `block_rows` (1 or
/// kFp8Block) by kFp8Block codes; the last blocks are smaller. steps: (ceil(r / block_rows), ceil(c /
/// kFp8Block)) f32.
void quantize_blocks(Stream& s, Tensor codes, Tensor steps, Tensor x, bool turn, int64_t block_rows);

/// Rule for steps from largest magnitudes. Element i belongs to a format with largest number 1.75 * 2^top[i %
/// period].
struct Fp8StepArgs {
  int period = 1;
  int top[3] = {8, 8, 8};
  int margin = 0;
  bool most_recent = false;  ///< with a history: use its newest entry instead of the largest
  bool record = true;        ///< with a history: false leaves it unchanged and ignores amax
};

/// Floats from one step to the next: cuBLASLt accepts scales only at multiples of 16 bytes.
inline constexpr int64_t kFp8StepStride = 4;

/// First element of each row of steps (n, kFp8StepStride) = fp8::step_of(amax); the other elements are
/// unchanged. amax: (n). With `history` (n, length): amax becomes its first entry, the last entry drops out,
/// and the history gives the magnitude. amax is reset to 0. All f32.
void update_fp8_steps(Stream& s, Tensor steps, Tensor amax, Tensor history, const Fp8StepArgs& args);

LT_KERNEL(max_abs, DType t, float* amax, const void* x, int64_t n)
LT_KERNEL(turn_codes, void* transposed, const void* codes, int64_t rows, int64_t cols)
LT_KERNEL(quantize, DType to, DType from, void* codes, const void* x, int64_t rows, int64_t cols, bool turn,
          const float* step, float* amax)
/// `transposed` or `codes` may be null to skip that output.
LT_CUDA_KERNEL(quantize_both, DType to, DType from, void* codes, void* transposed, const void* x,
               int64_t rows, int64_t cols, const float* step, float* amax)
LT_KERNEL(quantize_blocks, DType to, DType from, void* codes, float* steps, const void* x, int64_t rows,
          int64_t cols, bool turn, int64_t block_rows)
LT_KERNEL(update_fp8_steps, float* steps, float* amax, float* history, int64_t n, int64_t length,
          Fp8StepArgs args)

}  // namespace ltrain
