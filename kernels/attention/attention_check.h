// Comparison of the attention kernels with each other, on the GPU of the run.
#pragma once
#include <functional>
#include <string>

#include "kernels/attention/attention.h"

namespace ltrain {

/// For tests: called with each tensor of the wgmma kernels ("out", "dq", "dk", "dv") before it is compared.
/// `elements` of the type of the problem at `data`, or of f32 if `wide`.
using AttentionTamper =
    std::function<void(Stream& s, std::string_view tensor, void* data, int64_t elements, bool wide)>;

/// Runs small random problems through the wgmma kernels and the mma kernels: grouped heads, documents, blocks
/// of queries and keys of context parallelism, gradients added in f32. Returns an empty string if each row of
/// all outputs agrees, else the tensor and the size of the difference. An error of 1 % of one tensor is seen.
/// Waits for the stream and uses its scratch. `seq`: sequence length; 0: a length that takes a GPU some
/// milliseconds and uses all buffers of all kernels several times.
std::string compare_attention_kernels(Stream& s, DType t, int64_t head_dim, int64_t seq = 0,
                                      const AttentionTamper& tamper = {});

/// Reason why the wgmma kernels are not used on this GPU; empty if they are (why_unusable() of
/// kernel_trial.h).
std::string wgmma_unusable(Stream& s, DType t, int64_t head_dim, bool* news = nullptr);

}  // namespace ltrain
