// Attention of 16-bit types on tensor cores: a second implementation of attention_*_cuda (attention.h), run
// if attention_choice.h chooses it. Rows begin at multiples of 16 bytes.
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/tensor/stream_cuda.h"

namespace ltrain {

void attention_mma_forward(Stream& s, DType t, bool wide_out, void* out, void* lse, const AttentionArgs& a);
void attention_mma_backward(Stream& s, DType t, AttentionSink dq, AttentionSink dk, AttentionSink dv,
                            const void* dout, const void* out, const void* lse, const AttentionArgs& a,
                            /// size of delta in the stream's scratch
                            int64_t delta_bytes = cuda::kScratchBytes);

}  // namespace ltrain
