// Rounding of matrices to FP8, with a step (kernels/tensor/fp8.h) for all elements or for each block.
#pragma once
#include "kernels/tensor/fp8.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Elements along the contraction that share a step, and rows of a block of weights
/// (arXiv:2412.19437, 3.3.2).
inline constexpr int64_t kFp8Block = 128;

/// amax[0] = max(amax[0], largest |x|); a NaN is larger than all. amax: (1) f32. Any order gives the same
/// bits.
void max_abs(Stream& s, Tensor amax, Tensor x);

/// codes (rows, cols), or with `turn` (cols, rows), of fp8: x (rows, cols) / step, rounded. x of any floating
/// type, through f32. step: (1) f32, a power of two. With `amax` as max_abs on the way. Nothing aliases.
void quantize(Stream& s, Tensor codes, Tensor x, bool turn, Tensor step, Tensor amax = {});

/// The codes of x (rows, cols) and those of its transpose, with one reading of x: the bits of quantize
/// without and with `turn`. `amax` as there. Nothing aliases.
void quantize_both(Stream& s, Tensor codes, Tensor turned, Tensor x, Tensor step, Tensor amax = {});

/// For ops that can write their result rounded: the codes that quantize would make of it, and its `amax`.
struct RoundedOutput {
  Tensor codes;  ///< e4m3, of the result's shape
  Tensor step;
  Tensor amax;  ///< optional
};
/// On meta: how ranks agree on its step, and `amax` follows from the codes, which lie already as the result.
void place_rounded(Stream& s, const char* op, const RoundedOutput& out);
void check_rounded(const RoundedOutput& out, const Shape& shape);

/// turned (cols, rows) of codes (rows, cols), or of any elements of one byte. They do not alias.
void turn_codes(Stream& s, Tensor turned, Tensor codes);

/// As quantize, with steps that fit: codes (r, c); a step for each block of `block_rows` (1 or kFp8Block) by
/// kFp8Block of them, the last ones smaller. steps: (ceil(r / block_rows), ceil(c / kFp8Block)) f32.
void quantize_blocks(Stream& s, Tensor codes, Tensor steps, Tensor x, bool turn, int64_t block_rows);

/// How steps follow from largest magnitudes. Element i belongs to a format with largest number
/// 1.75 * 2^top[i % period].
struct Fp8StepArgs {
  int period = 1;
  int top[3] = {8, 8, 8};
  int margin = 0;
  bool most_recent = false;  ///< with a history: its last entry alone counts, else the largest
  bool record = true;        ///< with a history: false: it stays, and amax is not looked at
};

/// Floats from one step to the next: cuBLASLt takes scales at multiples of 16 bytes only.
inline constexpr int64_t kFp8StepStride = 4;

/// steps (n, kFp8StepStride): the first element of each row = fp8::step_of what amax (n) says; the others
/// stay. With `history` (n, length): it takes amax as its first entry, the last one leaves, and what the
/// history says counts; amax becomes 0. All f32.
void update_fp8_steps(Stream& s, Tensor steps, Tensor amax, Tensor history, const Fp8StepArgs& args);

LT_KERNEL(max_abs, DType t, float* amax, const void* x, int64_t n)
LT_KERNEL(turn_codes, void* turned, const void* codes, int64_t rows, int64_t cols)
LT_KERNEL(quantize, DType to, DType from, void* codes, const void* x, int64_t rows, int64_t cols, bool turn,
          const float* step, float* amax)
/// `turned` is null where only `codes` are wanted, and the other way round.
LT_CUDA_KERNEL(quantize_both, DType to, DType from, void* codes, void* turned, const void* x, int64_t rows,
               int64_t cols, const float* step, float* amax)
LT_KERNEL(quantize_blocks, DType to, DType from, void* codes, float* steps, const void* x, int64_t rows,
          int64_t cols, bool turn, int64_t block_rows)
LT_KERNEL(update_fp8_steps, float* steps, float* amax, float* history, int64_t n, int64_t length,
          Fp8StepArgs args)

}  // namespace ltrain
