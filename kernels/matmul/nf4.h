// NF4 of QLoRA (arXiv:2305.14314), as bitsandbytes stores it: a weight is one of 16 levels, times the largest
// magnitude of its block of 64 weights of one row. A byte holds two codes, the first in its upper half: 4.5
// bits a weight.
#pragma once
#include "kernels/tensor/host_device.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

inline constexpr int64_t kNf4Block = 64;  ///< weights that share a magnitude
inline constexpr int64_t kNf4Pair = 2;    ///< weights in a byte

/// A matrix (rows, cols), or a flat run of full blocks of it.
struct Nf4Matrix {
  Tensor codes;   ///< (rows, cols / kNf4Pair) u8
  Tensor absmax;  ///< (rows, cols / kNf4Block) f32
  bool defined() const { return codes.defined(); }
};

/// Level of a code: quantiles of the normal distribution, scaled to [-1, 1], with an exact 0.
LT_HD inline float nf4_level(int code) {
  const bool b0 = code & 1, b1 = code & 2, b2 = code & 4;
  if (code & 8)
    return b2 ? (b1 ? (b0 ? 1.0f : 0.7229568362236023f) : (b0 ? 0.5626170039176941f : 0.44070982933044434f))
              : (b1 ? (b0 ? 0.33791524171829224f : 0.24611230194568634f)
                    : (b0 ? 0.16093020141124725f : 0.07958029955625534f));
  return b2 ? (b1 ? (b0 ? 0.0f : -0.09105003625154495f)
                  : (b0 ? -0.18477343022823334f : -0.28444138169288635f))
            : (b1 ? (b0 ? -0.39491748809814453f : -0.5250730514526367f)
                  : (b0 ? -0.6961928009986877f : -1.0f));
}

/// w = level * absmax, a product in f32 rounded to the dtype of w. w: (rows, cols), a floating dtype.
void nf4_dequantize(Stream& s, Tensor w, const Nf4Matrix& from);

/// Codes and magnitudes of `n` values in host memory, a multiple of kNf4Block. value * (1 / absmax), in f32,
/// has the code of the nearest level, the lower of two, as in bitsandbytes for CPUs. A block with a value
/// that is not finite has such an absmax. codes: n / kNf4Pair; absmax: n / kNf4Block.
void nf4_quantize(uint8_t* codes, float* absmax, const float* values, int64_t n);

/// For set-up: quantises values in host memory, after rounding them to `dtype`, that of the matmuls, into
/// `to`. values: one for each code of `to`; they are overwritten. Returns false if one is not finite.
bool nf4_store(Stream& s, const Nf4Matrix& to, DType dtype, float* values);

LT_KERNEL(nf4_dequantize, DType t, void* w, const uint8_t* codes, const float* absmax, int64_t n)
LT_CPU_KERNEL(void nf4_quantize_cpu(uint8_t* codes, float* absmax, const float* values, int64_t n);)

}  // namespace ltrain
