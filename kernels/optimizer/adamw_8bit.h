// AdamW with one byte for each moment: a code, and a scale for every block of 256 elements (blockwise
// quantisation, arXiv:2110.02861). A code c means scale * (c / 127)^4 with the sign of the code for the first
// moment, and scale * (c / 255)^4 for the second. Resolution is fine near zero, and codes are exact on every
// device: a code is a rounded square root of a square root.
#pragma once
#include <cmath>
#include <vector>

#include "kernels/optimizer/adamw.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

inline constexpr int64_t kCodeBlock = 256;  ///< elements that share a scale

/// Value of a code relative to its scale, and the inverse. A nonzero second moment never becomes zero.
LT_HD inline float first_value(uint8_t code) {
  const int c = static_cast<int>(code) - 128;
  const float x = static_cast<float>(c < 0 ? -c : c) * (1.0f / 127.0f), y = x * x * x * x;
  return c < 0 ? -y : y;
}
LT_HD inline float second_value(uint8_t code) {
  const float x = static_cast<float>(code) * (1.0f / 255.0f);
  return x * x * x * x;
}
LT_HD inline uint8_t first_code(float v) {
  const float c = sqrtf(sqrtf(v < 0 ? -v : v)) * 127.0f + 0.5f;
  const int n = c < 127.0f ? static_cast<int>(c) : 127;
  return static_cast<uint8_t>(v < 0 ? 128 - n : 128 + n);
}
LT_HD inline uint8_t second_code(float v) {
  const float c = sqrtf(sqrtf(v)) * 255.0f + 0.5f;
  const int n = c < 255.0f ? static_cast<int>(c) : 255;
  return static_cast<uint8_t>(v > 0 && n == 0 ? 1 : n);
}

/// Codes and scales of both moments. `scales`: (2 * blocks) f32, first moments, then second moments.
struct CodedMoments {
  Tensor first, second;  ///< (n) u8, n a multiple of kCodeBlock
  Tensor scales;
};

/// One range with the same settings: blocks of kCodeBlock from its first element. master, grad: (n) f32. low:
/// (n) bf16 or f16 copy of master, or undefined.
struct CodedPart {
  Tensor master;
  CodedMoments moments;
  Tensor grad, low;
  bool decay = true;
  OptimizerStep args;
};
/// One AdamW step on all parts, with copies of one dtype: on a GPU in one launch, or in a few for dozens of
/// parts. The bits of a part do not depend on the other parts.
void adamw_8bit(Stream& s, const std::vector<CodedPart>& parts);
/// Decodes to values (2 n) f32, first then second moments; encodes such values.
void decode_moments(Stream& s, Tensor values, const CodedMoments& moments);
void encode_moments(Stream& s, const CodedMoments& moments, Tensor values);

/// A part without its dtypes.
struct CodedSpan {
  void *master, *first, *second, *scales;
  const void* grad;
  void* low;  ///< may be null
  int64_t n;
  bool decay;
  OptimizerStep args;
};
LT_KERNEL(adamw_8bit, DType low_type, std::vector<CodedSpan> spans)
LT_KERNEL(decode_moments, void* values, const void* first, const void* second, const void* scales, int64_t n)
LT_KERNEL(encode_moments, void* first, void* second, void* scales, const void* values, int64_t n)

}  // namespace ltrain
