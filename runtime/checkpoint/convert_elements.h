// Elements of one floating type as another, on the host: weights from outside are of other types than a
// run's.
#pragma once
#include <cstdint>

#include "kernels/tensor/dtype.h"

namespace ltrain {

/// f32, f64, bf16 or f16.
bool is_floating(DType t);
/// n elements; narrowing rounds to nearest, ties to even. `to` and `from` may be the same memory when the
/// types are.
void convert_elements(DType from_type, const void* from, DType to_type, void* to, int64_t n);

}  // namespace ltrain
