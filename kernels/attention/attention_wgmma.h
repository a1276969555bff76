// Attention of 16-bit types on Hopper's tensor cores (wgmma, bulk tensor copies): a third implementation of
// attention_*_cuda (attention.h), run if attention_choice.h chooses it.
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/tensor/stream_cuda.h"

namespace ltrain {

/// `blocks`: grid size; 0: one block for each multiprocessor.
void attention_wgmma_forward(Stream& s, DType t, bool wide_out, void* out, void* lse, const AttentionArgs& a,
                             int64_t blocks = 0);
void attention_wgmma_backward(Stream& s, DType t, AttentionSink dq, AttentionSink dk, AttentionSink dv,
                              const void* dout, const void* out, const void* lse, const AttentionArgs& a,
                              /// size of lse and delta in the stream's scratch
                              int64_t statistics_bytes = cuda::kScratchBytes, int64_t blocks = 0);

}  // namespace ltrain
