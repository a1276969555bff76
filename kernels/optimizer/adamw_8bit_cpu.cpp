#include "kernels/optimizer/adamw_8bit.h"

#include <algorithm>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

/// Encodes a block. Its scale is the largest magnitude.
void encode(uint8_t* codes, float* scale, const float* values, bool first) {
  float most = 0;
  for (int64_t i = 0; i < kCodeBlock; ++i) most = std::max(most, std::abs(values[i]));
  *scale = most;
  const float by = most > 0 ? 1.0f / most : 0.0f;
  if (first) {
#pragma omp simd
    for (int64_t i = 0; i < kCodeBlock; ++i) codes[i] = first_code(values[i] * by);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < kCodeBlock; ++i) codes[i] = second_code(values[i] * by);
  }
}

void decode(float* values, const uint8_t* codes, float scale, bool first) {
  if (first) {
#pragma omp simd
    for (int64_t i = 0; i < kCodeBlock; ++i) values[i] = scale * first_value(codes[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < kCodeBlock; ++i) values[i] = scale * second_value(codes[i]);
  }
}

void update(const CodedSpan& p, DType low_type) {
  const AdamwFactors<float> f(p.args, p.decay);
  const int64_t blocks = p.n / kCodeBlock;
  float *w = static_cast<float*>(p.master), *s1 = static_cast<float*>(p.scales), *s2 = s1 + blocks;
  uint8_t *c1 = static_cast<uint8_t*>(p.first), *c2 = static_cast<uint8_t*>(p.second);
  const float* g = static_cast<const float*>(p.grad);
  parallel_for(blocks, 64, [=](int64_t begin, int64_t end) {
    alignas(64) float m[kCodeBlock], v[kCodeBlock];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t at = b * kCodeBlock;
      decode(m, c1 + at, s1[b], true);
      decode(v, c2 + at, s2[b], false);
      float* __restrict wp = w + at;
      const float* __restrict gp = g + at;
#pragma omp simd
      for (int64_t i = 0; i < kCodeBlock; ++i) {
        const float x = gp[i] * f.scale + f.couple * wp[i];
        m[i] = f.beta1 * m[i] + f.one_minus1 * x;
        v[i] = f.beta2 * v[i] + f.one_minus2 * x * x;
        wp[i] = wp[i] * f.keep - f.step * m[i] / (std::sqrt(v[i]) * f.root + f.eps);
      }
      encode(c1 + at, s1 + b, m, true);
      encode(c2 + at, s2 + b, v, false);
      if (!p.low) continue;
      dispatch_half(low_type, [&]<class L>() {
        L* l = static_cast<L*>(p.low) + at;
#pragma omp simd
        for (int64_t i = 0; i < kCodeBlock; ++i) put(l, i, wp[i]);
      });
    }
  });
}

}  // namespace

void adamw_8bit_cpu(DType low_type, std::vector<CodedSpan> spans) {
  for (const CodedSpan& p : spans) update(p, low_type);
}

void decode_moments_cpu(void* values, const void* first, const void* second, const void* scales, int64_t n) {
  float* to = static_cast<float*>(values);
  const float* scale = static_cast<const float*>(scales);
  const int64_t blocks = n / kCodeBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    decode(to + b * kCodeBlock, static_cast<const uint8_t*>(first) + b * kCodeBlock, scale[b], true);
    decode(to + n + b * kCodeBlock, static_cast<const uint8_t*>(second) + b * kCodeBlock, scale[blocks + b],
           false);
  }
}

void encode_moments_cpu(void* first, void* second, void* scales, const void* values, int64_t n) {
  const float* from = static_cast<const float*>(values);
  float* scale = static_cast<float*>(scales);
  const int64_t blocks = n / kCodeBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    encode(static_cast<uint8_t*>(first) + b * kCodeBlock, scale + b, from + b * kCodeBlock, true);
    encode(static_cast<uint8_t*>(second) + b * kCodeBlock, scale + blocks + b, from + n + b * kCodeBlock,
           false);
  }
}

}  // namespace ltrain::LT_ISA
