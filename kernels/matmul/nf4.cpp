#include "kernels/matmul/nf4.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/staging.h"

namespace ltrain {

void nf4_dequantize(Stream& s, Tensor w, const Nf4Matrix& from) {
  const int64_t n = w.elements();
  LT_CHECK(from.codes.dtype == DType::u8 && from.absmax.dtype == DType::f32 && w.cols() % kNf4Block == 0 &&
               from.codes.elements() == n / kNf4Pair && from.absmax.elements() == n / kNf4Block,
           "nf4_dequantize: expected {} codes and {} magnitudes for {}, got {} {} and {} {}", n / kNf4Pair,
           n / kNf4Block, to_string(w.shape), dtype_name(from.codes.dtype), to_string(from.codes.shape),
           dtype_name(from.absmax.dtype), to_string(from.absmax.shape));
  if (s.meta()) {
    s.meta()->add(s,
                  op_cost("nf4_dequantize", OpClass::elementwise, 1.0 * n, {w}, {from.codes, from.absmax}));
    place(s, "nf4_dequantize", Rule::elementwise, {w}, {from.codes, from.absmax});
    return;
  }
  LT_LAUNCH(s, nf4_dequantize, w.dtype, w.data, from.codes.ptr<uint8_t>(), from.absmax.ptr<float>(), n);
}

void nf4_quantize(uint8_t* codes, float* absmax, const float* values, int64_t n) {
  LT_CHECK(n % kNf4Block == 0, "nf4_quantize: expected full blocks of {} values, got {} values", kNf4Block,
           n);
  LT_CPU(nf4_quantize_cpu)(codes, absmax, values, n);
}

bool nf4_store(Stream& s, const Nf4Matrix& to, DType dtype, float* values) {
  const int64_t n = to.codes.elements() * kNf4Pair;
  if (is_half(dtype))
    dispatch_half(dtype, [&]<class T>() {
      for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(static_cast<T>(values[i]));
    });
  std::vector<uint8_t> codes(static_cast<size_t>(n / kNf4Pair));
  std::vector<float> absmax(static_cast<size_t>(n / kNf4Block));
  nf4_quantize(codes.data(), absmax.data(), values, n);
  upload(s, to.codes, codes.data());
  upload(s, to.absmax, absmax.data());
  return std::all_of(absmax.begin(), absmax.end(), [](float m) { return std::isfinite(m); });
}

}  // namespace ltrain
