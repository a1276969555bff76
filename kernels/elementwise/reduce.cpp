#include "kernels/elementwise/reduce.h"

#include <cstring>

#include "base/error.h"

namespace ltrain {

void reduce_ordered(void* out, const void* const* sources, int count, int64_t elements, DType dtype,
                    ReduceOp op) {
  LT_CHECK(count >= 1, "reduction: expected at least 1 source, got {}", count);
  LT_CHECK(reducible(dtype), "reduction: expected f32, f64, bf16, f16, i32 or i64, got {}",
           dtype_name(dtype));
  if (count == 1) {
    if (out != sources[0] && elements > 0)
      std::memcpy(out, sources[0], static_cast<size_t>(elements * dtype_size(dtype)));
    return;
  }
  LT_CPU(reduce_ordered_cpu)(out, sources, count, elements, dtype, op);
}

}  // namespace ltrain
