// Checks that the state to be saved is finite. The check runs while the state is copied, so memory is read
// once.
#pragma once
#include <cstdint>

#include "kernels/tensor/dtype.h"

namespace ltrain {

/// Number of infinite or NaN elements; 0 for integer types.
int64_t count_not_finite(DType type, const void* data, int64_t elements);

/// Copies elements and returns the number of infinite or NaN ones. `from` and `to` must not overlap.
int64_t copy_and_check(DType type, void* to, const void* from, int64_t elements);

}  // namespace ltrain
