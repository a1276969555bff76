// Error feedback for a compressed all-reduce: values are coded in 8 bits or 1, and the rounding error is
// added to the next values (arXiv:1809.07599; for Adam's moment arXiv:2102.02888).
//
// Elements are coded in blocks, each with a scale. `sign`: one bit for each element, the scale is the root
// mean square of the block. `int8`: a signed byte for each element, the scale is its largest magnitude over
// 127. A coded block is its codes and then its scale, so that a run of blocks can be sent as it is.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

enum class Code : uint8_t { sign, int8 };

LT_HD constexpr int64_t code_block(Code c) { return c == Code::sign ? 2048 : 256; }
/// Bytes of a block's codes, the same for both codes.
inline constexpr int64_t kCodes = 256;
/// Bytes of n coded elements of dtype f32 or f64, in full blocks.
constexpr int64_t coded_bytes(Code c, DType t, int64_t n) {
  return n / code_block(c) * (kCodes + dtype_size(t));
}

/// coded = values + error, rounded; error = rounding error. values, error: (n) f32 or f64, n a multiple of
/// the block. coded: (coded_bytes) u8. `where`: (n), or undefined; elements where it is zero are skipped:
/// they have no error, and do not affect a scale. A non-finite element makes its block NaN.
void compress(Stream& s, Code code, Tensor coded, Tensor values, Tensor error, Tensor where);
/// out = factor * (sum over `ranks` of the parts of `coded`) + error, rounded; error = rounding error. Sums
/// in the order of the ranks. out: (coded_bytes of n) u8, n elements of `error`; coded: ranks times that.
void compress_sum(Stream& s, Code code, Tensor out, Tensor coded, int ranks, double factor, Tensor error,
                  Tensor where);
/// values (n) = decoded `coded`, zero where `where` is zero.
void decompress(Stream& s, Code code, Tensor values, Tensor coded, Tensor where);

LT_KERNEL(compress, DType t, Code code, void* coded, const void* values, void* error, const void* where,
          int64_t n)
LT_KERNEL(compress_sum, DType t, Code code, void* out, const void* coded, int ranks, double factor,
          void* error, const void* where, int64_t n)
LT_KERNEL(decompress, DType t, Code code, void* values, const void* coded, const void* where, int64_t n)

}  // namespace ltrain
