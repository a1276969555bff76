// Kernels of attention against each other, on the GPU that is to run them.
#pragma once
#include <functional>
#include <string>

#include "kernels/attention/attention.h"

namespace ltrain {

/// For tests: gets each tensor of the wgmma kernels ("out", "dq", "dk", "dv"; `elements` of the type at
/// `data`, or of f32 where they are `wide`) before it is compared.
using AttentionTamper =
    std::function<void(Stream& s, std::string_view tensor, void* data, int64_t elements, bool wide)>;

/// Small random problems through the wgmma kernels and the mma kernels: grouped heads, documents, some
/// queries against some keys as ranks of context parallelism have them, gradients that are added to in f32.
/// Empty where each row of all that they write agrees, else what does not and by how much: an error of 1 % of
/// one of the tensors is seen. Waits for the stream, and uses its scratch. `seq`: of the sequences; 0: as
/// long as a GPU takes in some milliseconds, and for all buffers of all kernels to be used several times.
std::string compare_attention_kernels(Stream& s, DType t, int64_t head_dim, int64_t seq = 0,
                                      const AttentionTamper& tamper = {});

/// Why the wgmma kernels are not used on this GPU; empty where they are (why_unusable() of kernel_trial.h).
std::string wgmma_unusable(Stream& s, DType t, int64_t head_dim, bool* news = nullptr);

}  // namespace ltrain
