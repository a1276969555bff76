// Token embedding, with learned positions where the model has them.
#pragma once
#include "kernels/core/cpu_isa.h"
#include "kernels/core/stream.h"

namespace ltrain {

/// y[t] = table[tokens[t]] + positions[t % seq].  tokens: (T) i32 in [0, V); table: (V, C); positions: (P, C)
/// or undefined; y: (T, C). A token outside [0, V) fails with ExitCode::data.
void embedding_forward(Stream& s, Tensor y, Tensor tokens, Tensor table, Tensor positions, int64_t seq);

/// dtable[tokens[t]] += dy[t], rows in ascending t whatever the number of threads. dtable: f32 (f64 for f64),
/// or overwritten (zeros where no token fell) when not `accumulate`.
void embedding_backward(Stream& s, Tensor dtable, Tensor dy, Tensor tokens, bool accumulate);
/// dpositions[t % seq] (+)= dy[t]; rows from seq on become zero when not `accumulate`.
void position_backward(Stream& s, Tensor dpositions, Tensor dy, int64_t seq, bool accumulate);

LT_CPU_KERNEL(void embedding_forward_cpu(DType t, void* y, const int32_t* tokens, const void* table,
                                         const void* positions, int64_t rows, int64_t cols, int64_t vocab,
                                         int64_t seq);
              void embedding_backward_cpu(DType t, void* dtable, const void* dy, const int32_t* tokens,
                                          int64_t rows, int64_t cols, int64_t vocab, bool accumulate);
              void position_backward_cpu(DType t, void* dpositions, const void* dy, int64_t rows,
                                         int64_t cols, int64_t seq, int64_t positions, bool accumulate);)

}  // namespace ltrain
