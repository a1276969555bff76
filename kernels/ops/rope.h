// Rotary position embedding (arXiv:2104.09864), Hugging Face's half-split layout: pairs are channels i and i
// + d/2.
#pragma once
#include "kernels/core/cpu_isa.h"
#include "kernels/core/stream.h"

namespace ltrain {

/// Rotates the first `heads` heads of each row of qkv in place: row t of qkv (B * seq, row_width) by the
/// angles of position t % seq in table (max_positions, d/2, 2) f32: cos, sin. `inverse` rotates back, which
/// is the backward.
void rope(Stream& s, Tensor qkv, Tensor table, int64_t seq, int64_t heads, int64_t head_dim, bool inverse);

LT_CPU_KERNEL(void rope_cpu(DType t, void* qkv, const float* table, int64_t rows, int64_t width, int64_t seq,
                            int64_t heads, int64_t head_dim, bool inverse);)

}  // namespace ltrain
