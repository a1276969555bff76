// Whether what a checkpoint would hold is finite: seen while it is copied, so that memory is read once.
#pragma once
#include <cstdint>

#include "kernels/tensor/dtype.h"

namespace ltrain {

/// Elements that are infinite or NaN; 0 of whole numbers.
int64_t count_not_finite(DType type, const void* data, int64_t elements);

/// Copies, and counts them on the way. `from` and `to` do not overlap.
int64_t copy_and_check(DType type, void* to, const void* from, int64_t elements);

}  // namespace ltrain
