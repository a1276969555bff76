#include "runtime/checkpoint/convert_elements.h"

#include <cstring>

namespace ltrain {
namespace {

template <class From, class To>
void convert(const void* from, void* to, int64_t n) {
  const From* x = static_cast<const From*>(from);
  To* y = static_cast<To*>(to);
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<From, double> && !std::is_same_v<To, double>)
      put(y, i, static_cast<float>(x[i]));
    else
      put(y, i, get(x, i));
  }
}

template <class From>
void convert_from(const void* from, DType to_type, void* to, int64_t n) {
  switch (to_type) {
    case DType::f32:
      return convert<From, float>(from, to, n);
    case DType::f64:
      return convert<From, double>(from, to, n);
    case DType::bf16:
      return convert<From, bf16>(from, to, n);
    case DType::f16:
      return convert<From, f16>(from, to, n);
    default:
      LT_CHECK(false, "expected f32, f64, bf16 or f16 to convert to, got {}", dtype_name(to_type));
  }
}

}  // namespace

bool is_floating(DType t) {
  return t == DType::f32 || t == DType::f64 || t == DType::bf16 || t == DType::f16;
}

void convert_elements(DType from_type, const void* from, DType to_type, void* to, int64_t n) {
  if (from_type == to_type) {
    if (from != to) std::memcpy(to, from, static_cast<size_t>(n * dtype_size(to_type)));
    return;
  }
  switch (from_type) {
    case DType::f32:
      return convert_from<float>(from, to_type, to, n);
    case DType::f64:
      return convert_from<double>(from, to_type, to, n);
    case DType::bf16:
      return convert_from<bf16>(from, to_type, to, n);
    case DType::f16:
      return convert_from<f16>(from, to_type, to, n);
    default:
      LT_CHECK(false, "expected f32, f64, bf16 or f16 to convert to {}, got {}", dtype_name(to_type),
               dtype_name(from_type));
  }
}

}  // namespace ltrain
