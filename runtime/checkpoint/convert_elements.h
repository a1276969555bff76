// Conversion of floating-point elements on the host, for weights whose type differs from the run's.
#pragma once
#include <cstdint>

#include "kernels/tensor/dtype.h"

namespace ltrain {

/// Returns whether `t` is f32, f64, bf16 or f16.
bool is_floating(DType t);
/// Converts n elements. Narrowing rounds to nearest, ties to even. `to` and `from` may be the same memory if
/// the types are equal.
void convert_elements(DType from_type, const void* from, DType to_type, void* to, int64_t n);

}  // namespace ltrain
