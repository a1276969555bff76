// Elementwise reduction of several arrays in a fixed order: the arithmetic of every CPU collective.
#pragma once
#include <cstdint>

#include "base/cpu_isa.h"
#include "kernels/tensor/dtype.h"

namespace ltrain {

enum class ReduceOp : uint8_t { sum, max, min };
constexpr const char* reduce_op_name(ReduceOp op) {
  return op == ReduceOp::sum ? "sum" : op == ReduceOp::max ? "max" : "min";
}

/// True for the dtypes that collectives can reduce: f32, f64, bf16, f16, i32, i64.
constexpr bool reducible(DType t) {
  return t == DType::f32 || t == DType::f64 || is_half(t) || t == DType::i32 || t == DType::i64;
}

/// out[i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) ..., for i < elements. 16-bit types are
/// reduced in fp32 and rounded once, at the end. max and min propagate NaN. `out` may be one of the sources;
/// otherwise no overlap.
void reduce_ordered(void* out, const void* const* sources, int count, int64_t elements, DType dtype,
                    ReduceOp op);

LT_CPU_KERNEL(void reduce_ordered_cpu(void* out, const void* const* sources, int count, int64_t elements,
                                      DType dtype, ReduceOp op);)

}  // namespace ltrain
